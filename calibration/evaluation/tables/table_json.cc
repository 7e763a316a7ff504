// Tables for programs.

#include <cmath>

#include "calibration/evaluation/tables/table.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::ordered_json;

Json Number(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json CellJson(const TableCell& cell) {
  Json json = {{"value", Number(cell.value)}};
  json["interval"] =
      cell.interval ? Json::array({Number(cell.interval->first), Number(cell.interval->second)})
                    : Json();
  if (cell.n > 0) json["n"] = cell.n;
  if (cell.paper) json["paper"] = Number(cell.paper);
  return json;
}

}  // namespace

std::string TableJson(const Table& table) {
  Json json = {{"table", table.name}, {"title", table.title}, {"method", table.method}};
  if (!table.paper.empty()) json["paper"] = table.paper;
  if (!table.counted.empty()) json["counted"] = table.counted;
  json["settings"] = Json::object();
  for (const auto& [name, value] : table.settings) json["settings"][name] = value;
  json["findings"] = table.findings;
  json["columns"] = Json::array();
  for (const TableColumn& column : table.columns) {
    // Shares are written as shares.
    json["columns"].push_back(
        {{"name", column.name}, {"unit", column.percent ? "share" : column.unit}});
  }
  json["rows"] = Json::array();
  for (const TableRow& row : table.rows) {
    Json out = Json::object();
    for (size_t i = 0; i < table.keys.size() && i < row.labels.size(); ++i) {
      out[table.keys[i]] = row.labels[i];
    }
    if (row.n > 0) out["n"] = row.n;
    for (size_t i = 0; i < table.columns.size() && i < row.cells.size(); ++i) {
      out[table.columns[i].name] = CellJson(row.cells[i]);
    }
    json["rows"].push_back(std::move(out));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace eta
