#include "data/detail/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace osdn::data::detail {

Mixture::Mixture(const std::vector<double>& weights) {
  const size_t sources = weights.size();
  OSDN_ASSERT(sources >= 1 && sources <= 4096, "{} sources", sources);
  quotas_.assign(sources, kBlock);
  if (sources == 1) return;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> remainders(sources);
  for (size_t k = 0; k < sources; ++k) {
    const double share = weights[k] / total * static_cast<double>(kBlock);
    quotas_[k] = std::max<int64_t>(static_cast<int64_t>(std::floor(share)), 1);
    remainders[k] = share - static_cast<double>(quotas_[k]);
  }
  int64_t open = kBlock - std::accumulate(quotas_.begin(), quotas_.end(), int64_t{0});
  while (open != 0) {
    const int64_t step = open > 0 ? 1 : -1;
    size_t chosen = 0;
    for (size_t k = 1; k < sources; ++k) {
      const bool possible = step > 0 || quotas_[k] > 1;
      const bool better = step > 0 ? remainders[k] > remainders[chosen] : remainders[k] < remainders[chosen];
      if (possible && (better || (step < 0 && quotas_[chosen] <= 1))) chosen = k;
    }
    quotas_[chosen] += step;
    remainders[chosen] -= static_cast<double>(step);
    open -= step;
  }
  std::vector<int64_t> credit(sources, 0);
  std::vector<uint16_t> given(sources, 0);
  for (int64_t place = 0; place < kBlock; ++place) {
    for (size_t k = 0; k < sources; ++k) credit[k] += quotas_[k];
    const auto chosen = static_cast<size_t>(std::max_element(credit.begin(), credit.end()) - credit.begin());
    credit[chosen] -= kBlock;
    source_.push_back(static_cast<uint16_t>(chosen));
    previous_.push_back(given[chosen]++);
  }
}

Mixture::Place Mixture::operator()(int64_t sample) const {
  if (quotas_.size() == 1) return {.source = 0, .index = sample};
  const auto place = static_cast<size_t>(sample % kBlock);
  const size_t source = source_[place];
  return {.source = source, .index = sample / kBlock * quotas_[source] + previous_[place]};
}

}  // namespace osdn::data::detail
