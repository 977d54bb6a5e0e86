# cmake -DOUT=FILE "-DIMAGES=FILE;..." -P digest_images.cmake: a source file that has the files in
# itself, as digest_images.h says.
set(source "#include \"platform/driver/digest_images.h\"\n\nnamespace gpushm::digest_kernel {\nnamespace {\n\n")
set(table)
foreach(image IN LISTS IMAGES)
  list(LENGTH table number)
  file(READ ${image} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes ${bytes})
  # The zero ends a text.
  string(APPEND source "alignas(8) constexpr unsigned char kImage${number}[] = {${bytes}0};\n")
  list(APPEND table kImage${number})
endforeach()
list(JOIN table ", " table)
string(APPEND source "constexpr const unsigned char* kImages[] = {${table}};\n\n}  // namespace\n\n"
  "std::span<const unsigned char* const> Images() { return kImages; }\n\n"
  "}  // namespace gpushm::digest_kernel\n")
file(WRITE ${OUT} "${source}")
