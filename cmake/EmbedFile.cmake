# Run at build time (cmake -P): INPUT's bytes as a C++ array in OUTPUT, named SYMBOL, with its size in SYMBOLSize.
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include <cstddef>
namespace osdn::embedded {
extern const unsigned char ${SYMBOL}[];
extern const size_t ${SYMBOL}Size;
const unsigned char ${SYMBOL}[] = {${bytes}};
const size_t ${SYMBOL}Size = ${size};
}  // namespace osdn::embedded
")
