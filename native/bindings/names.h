// How native nouns read in Python; shared by the wires' bindings.
#pragma once
#include <map>
#include <string>

#include "ltp/stats.h"
#include "ltp/transfer.h"

namespace gradwire {

const char* name_of(ltp::Failure failure);
std::map<std::string, double> describe(const ltp::LinkStats& stats);

}  // namespace gradwire
