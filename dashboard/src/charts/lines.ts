// Turns series into the data of a chart: one shared time axis, a mean line per series, a band from lowest to highest.
import uPlot from "uplot";
import type { Series } from "../lib/api";
import { byUnit } from "../lib/format";

export interface Line {
  label: string;
  colour: string;
  format: (value: number | null | undefined) => string;
  axis?: "left" | "right";
  dash?: boolean;
  hidden?: boolean;
  fill?: number;
  stepped?: boolean;
  // The band between this line and the next one is filled.
  band?: boolean;
  // Values for the legend if the drawn value is a sum.
  raw?: (number | null | undefined)[];
}

export interface Drawn {
  lines: Line[];
  data: uPlot.AlignedData;
}

export interface Wanted {
  series: Series | undefined;
  label: string;
  colour: string;
  axis?: "left" | "right";
  dash?: boolean;
  stepped?: boolean;
}

export function colour(name: string, alpha = 1): string {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return alpha === 1 ? value : `color-mix(in srgb, ${value} ${alpha * 100}%, transparent)`;
}

export function draw(wanted: Wanted[]): Drawn {
  const lines: Line[] = [];
  const tables: uPlot.AlignedData[] = [];
  for (const { series, label, colour: name, ...rest } of wanted) {
    if (!series) continue;
    const format = byUnit(series.unit);
    const wide = series.at.some((_, index) => series.high[index]! > series.low[index]!);
    if (wide) {
      const edge = { colour: name, format, hidden: true, axis: rest.axis, stepped: rest.stepped };
      lines.push({ ...edge, label: `${label} high`, band: true }, { ...edge, label: `${label} low` });
      tables.push(broken(series.at, series.high, series.low));
    }
    lines.push({ label, colour: name, format, ...rest });
    tables.push(broken(series.at, series.mean));
  }
  const full = tables.filter((table) => (table[0]?.length ?? 0) > 0);
  if (full.length === 0) return { lines: [], data: [[]] };
  const data = tables.length === 1 ? tables[0]! : uPlot.join(tables);
  return { lines, data: widened(data) };
}

// Interrupts a line where nothing was recorded for much longer than usual: a null in the middle of the gap.
function broken(at: number[], ...columns: number[][]): uPlot.AlignedData {
  const steps = at.slice(1).map((time, index) => time - at[index]!);
  const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length * 0.9)] ?? 0;
  const gaps = new Set(steps.flatMap((step, index) => (step > 12 * usual && usual > 0 ? [index] : [])));
  if (gaps.size === 0) return [at, ...columns];
  const spread = <T>(values: T[], filler: (index: number) => T): T[] =>
    values.flatMap((value, index) => (gaps.has(index) ? [value, filler(index)] : [value]));
  const times = spread(at, (index) => (at[index]! + at[index + 1]!) / 2);
  return [times, ...columns.map((column) => spread<number | null>(column, () => null))];
}

// After joining, the times of other series may lie inside a gap: they become part of it.
function widened(data: uPlot.AlignedData): uPlot.AlignedData {
  const [at, ...columns] = data as [number[], ...(number | null | undefined)[][]];
  for (const column of columns)
    column.forEach((value, index) => {
      if (value !== null) return;
      for (let left = index - 1; left >= 0 && column[left] === undefined; left -= 1) column[left] = null;
      for (let right = index + 1; right < at.length && column[right] === undefined; right += 1) column[right] = null;
    });
  return data;
}

// Stacked areas: the topmost is drawn first. All parts are of one rank's steps and share their times.
export function stack(parts: { series: Series | undefined; label: string; colour: string }[], total?: Wanted): Drawn {
  const known = parts.filter((part) => part.series && part.series.at.length > 0);
  const at = known[0]?.series?.at ?? [];
  const lines: Line[] = [];
  const tables: uPlot.AlignedData[] = [];
  let below = new Array<number>(at.length).fill(0);
  for (const part of known) {
    below = below.map((sum, index) => sum + (part.series!.mean[index] ?? 0));
    const raw = part.series!.mean;
    lines.unshift({ label: part.label, colour: part.colour, format: byUnit("s"), fill: 0.9, raw });
    tables.unshift([at, below]);
  }
  if (total?.series?.at.length) {
    const { label, colour: name, dash } = total;
    lines.push({ label, colour: name, dash, format: byUnit("s") });
    tables.push([total.series.at, total.series.mean]);
    const data = uPlot.join(tables);
    return { lines: lines.map((line, index) => (line.raw ? { ...line, raw: layer(data, index, known.length) } : line)), data };
  }
  return { lines, data: [at, ...tables.map((table) => table[1]!)] as uPlot.AlignedData };
}

// The height of one layer at the times of joined data.
function layer(data: uPlot.AlignedData, index: number, layers: number): (number | undefined)[] {
  const lower = index + 1 < layers ? data[index + 2] : undefined;
  return Array.from(data[index + 1]!, (top, at) => (top == null ? undefined : top - (lower?.[at] ?? 0)));
}
