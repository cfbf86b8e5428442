// Numbers as text. An unknown value is a dash.

const NONE = "–";

function scaled(value: number, steps: [number, string][], digits = 3): string {
  if (!Number.isFinite(value)) return NONE;
  const [factor, unit] = steps.find(([least]) => Math.abs(value) >= least) ?? steps[steps.length - 1]!;
  return `${significant(value / factor, digits)} ${unit}`;
}

export function significant(value: number, digits = 3): string {
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toFixed(Math.max(0, Math.min(4, digits - Math.max(whole, 1))));
}

export function bytes(value: number | null | undefined): string {
  if (value == null) return NONE;
  return scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
}

// Rates are bytes per second in the API and bits per second on the page.
export function rate(value: number | null | undefined): string {
  if (value == null) return NONE;
  return scaled(value * 8, [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"], [1, "bit/s"]]);
}

export function seconds(value: number | null | undefined): string {
  if (value == null) return NONE;
  if (value === 0) return "0 s";
  return scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]);
}

export function share(value: number | null | undefined): string {
  return value == null ? NONE : `${significant(value * 100)} %`;
}

export function count(value: number | null | undefined): string {
  return value == null ? NONE : Math.round(value).toLocaleString("en").replace(/,/g, "\u202f");
}

export function times(value: number | null | undefined): string {
  return value == null ? NONE : `${significant(value)}×`;
}

// 3725 -> 1:02:05; on an axis with a short range 0:03.20
export function axisClock(value: number, span: number): string {
  const digits = span >= 10 ? 0 : span >= 2 ? 1 : 2;
  return digits === 0 ? clock(value) : clock(value) + (value % 1).toFixed(digits).slice(1);
}

export function clock(value: number): string {
  const whole = Math.max(0, Math.floor(value));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const shown = parts[0]! > 0 ? parts : parts.slice(1);
  return shown.map((part, index) => (index ? String(part).padStart(2, "0") : String(part))).join(":");
}

export function byUnit(unit: string): (value: number | null | undefined) => string {
  if (unit === "B/s") return rate;
  if (unit === "s") return seconds;
  if (unit === "share") return share;
  return (value) => (value == null ? NONE : significant(value));
}
