// The page of `osdn report`: one self-contained HTML file.
#pragma once

#include <string>
#include <vector>

#include "apps/report_data.h"

namespace osdn::apps {

/// HTML with everything inside: data, style, script, Chart.js. Runs keep their order and colour in every
/// chart.
std::string report_page(const std::vector<ReportRun>& runs);

}  // namespace osdn::apps
