#include "config/detail/scalar.h"

#include <limits>

#include "config/detail/suggest.h"
#include "tests/support/catch.h"

namespace osdn::config::test {

TEST_CASE("integers parse exactly over 64 bits and in integral floating form", "[scalar]") {
  CHECK(detail::parse_integer("9223372036854775807") == std::numeric_limits<int64_t>::max());
  CHECK(detail::parse_integer("-9223372036854775808") == std::numeric_limits<int64_t>::min());
  CHECK(detail::parse_integer("+5") == 5);
  CHECK(detail::parse_integer("2e3") == 2000);
  CHECK(detail::parse_integer("1_000") == 1000);
  for (const char* text :
       {"9223372036854775808", "1e300", "1__0", "_1", "1_", "0x10", "007", "", "-", "1.5", "1e-1", "5 "}) {
    INFO(text);
    CHECK(!detail::parse_integer(text));
  }
}

TEST_CASE("numbers print as YAML 1.1 floats and read back bit-exactly", "[scalar]") {
  CHECK(detail::format_number(1e-4) == "0.0001");
  CHECK(detail::format_number(1e-15) == "1.0e-15");
  CHECK(detail::format_number(2.5e-9) == "2.5e-9");
  CHECK(detail::format_number(3) == "3.0");
  CHECK(detail::format_number(1e300) == "1.0e+300");
  for (const double value :
       {1e-4, 2.0 / 3.0, 1e9, 0.1 + 0.2, 1e-15, 5e-324, 1.7976931348623157e308, -0.0, 123456789.125}) {
    const std::string text = detail::format_number(value);
    INFO(text);
    // YAML 1.1 floats have a point, and a sign in the exponent.
    CHECK(text.find('.') != std::string::npos);
    const size_t exponent = text.find('e');
    if (exponent != std::string::npos) CHECK((text[exponent + 1] == '-' || text[exponent + 1] == '+'));
    CHECK(detail::parse_number(text) == value);
  }
}

TEST_CASE("text that a YAML reader could take for something else is quoted", "[scalar]") {
  CHECK(detail::format_text("runs/a-b_c.h5") == "runs/a-b_c.h5");
  for (const char* text :
       {"null", "yes", "No", "on", "auto", "~", "1e5", "12", "*.h5", "a: b", "a #b", "", "-x", "n", ".5"}) {
    INFO(text);
    CHECK(detail::format_text(text) == "\"" + std::string(text) + "\"");
  }
  CHECK(detail::format_text("a\"b\\c\n") == "\"a\\\"b\\\\c\\x0a\"");
}

TEST_CASE("edit distance counts swaps once and folds case and hyphens", "[scalar]") {
  CHECK(detail::edit_distance("learning_rate", "learning_rate") == 0);
  CHECK(detail::edit_distance("Learning-Rate", "learning_rate") == 0);
  CHECK(detail::edit_distance("modle", "model") == 1);
  CHECK(detail::edit_distance("kitten", "sitting") == 3);
  CHECK(detail::nearest("zz", {"lr", "eps"}).empty());
  CHECK(detail::nearest("GDN", {"delta_net", "gated_delta_net", "kda"}) == "gated_delta_net");
  CHECK(detail::nearest("kad", {"delta_net", "gated_delta_net", "kda"}) == "kda");
  CHECK(detail::known_synonym("D_Model") == "model.hidden_size");
}

}  // namespace osdn::config::test
