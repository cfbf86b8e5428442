// The selected view, run, rank and zoom, kept in the URL so that it can be shared and the back button works; and the
// live stream.
import type { RunBrief } from "./api";

export const VIEWS = ["overview", "timeline", "topology", "links", "transport", "faults", "configuration"] as const;
export type View = (typeof VIEWS)[number];
export type Theme = "auto" | "light" | "dark";

class State {
  runs = $state<RunBrief[]>([]);
  connected = $state(false);
  view = $state<View>("overview");
  runId = $state("");
  otherId = $state("");
  rank = $state(0);
  zoom = $state<[number, number] | null>(null);
  theme = $state<Theme>("auto");
  failure = $state("");
  width = $state(innerWidth);
  // Increases when a shown run changed; views read it to know when to request again.
  tick = $state(0);

  run = $derived(this.runs.find((run) => run.id === this.runId) ?? this.runs[0]);
  other = $derived(this.runs.find((run) => run.id === this.otherId && run.id !== this.run?.id));
  duration = $derived(Math.max(this.run?.duration ?? 0, this.other?.duration ?? 0, 1));
  range = $derived<[number, number]>(this.zoom ?? [0, this.duration]);
  dark = $state(false);
}

export const app = new State();
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let seen = "";

export function start(): () => void {
  readAddress();
  app.theme = (localStorage.getItem("gradwire-theme") as Theme | null) ?? "auto";
  applyTheme();
  addEventListener("hashchange", readAddress);
  prefersDark.addEventListener("change", applyTheme);
  const stream = new EventSource("/api/live");
  stream.addEventListener("pulse", (event) => {
    app.connected = true;
    app.runs = (JSON.parse((event as MessageEvent<string>).data) as { runs: RunBrief[] }).runs;
    const now = [app.run, app.other].map((run) => `${run?.id}:${run?.changed}`).join();
    if (now !== seen) app.tick += 1;
    seen = now;
  });
  stream.onerror = () => (app.connected = false);
  return () => stream.close();
}

export function readAddress(): void {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  app.view = VIEWS.find((view) => view === path) ?? "overview";
  const search = new URLSearchParams(query);
  app.runId = search.get("run") ?? "";
  app.otherId = search.get("with") ?? "";
  app.rank = Math.max(0, Number(search.get("rank") ?? 0) || 0);
  const [from, to] = [Number(search.get("from") ?? NaN), Number(search.get("to") ?? NaN)];
  app.zoom = to > from && from >= 0 ? [from, to] : null;
}

export interface Change {
  view?: View;
  run?: string;
  with?: string;
  rank?: number;
  zoom?: [number, number] | null;
}

export function address(change: Change): string {
  const search = new URLSearchParams();
  const run = change.run ?? app.runId;
  const other = change.with ?? app.otherId;
  const rank = change.rank ?? app.rank;
  const zoom = change.zoom === undefined ? app.zoom : change.zoom;
  if (run) search.set("run", run);
  if (other && other !== run) search.set("with", other);
  if (rank) search.set("rank", String(rank));
  if (zoom) {
    search.set("from", zoom[0].toFixed(2));
    search.set("to", zoom[1].toFixed(2));
  }
  const query = search.toString();
  return `#/${change.view ?? app.view}${query ? `?${query}` : ""}`;
}

export function go(change: Change): void {
  location.hash = address(change);
  readAddress(); // at once: the hashchange event comes later, and the next key press needs the new state
}

export function setTheme(theme: Theme): void {
  app.theme = theme;
  localStorage.setItem("gradwire-theme", theme);
  applyTheme();
}

function applyTheme(): void {
  app.dark = app.theme === "dark" || (app.theme === "auto" && prefersDark.matches);
  document.documentElement.dataset.theme = app.dark ? "dark" : "light";
}

// Keys that move the time range of all charts.
export function moveRange(key: string): boolean {
  const [from, to] = app.range;
  const span = to - from;
  const moves: Record<string, [number, number]> = {
    ArrowLeft: [from - span / 4, to - span / 4],
    ArrowRight: [from + span / 4, to + span / 4],
    "+": [from + span / 4, to - span / 4],
    "=": [from + span / 4, to - span / 4],
    "-": [from - span / 2, to + span / 2],
  };
  if (key === "0" || key === "Escape") {
    go({ zoom: null });
    return true;
  }
  const move = moves[key];
  if (!move) return false;
  const length = Math.min(move[1] - move[0], app.duration);
  const low = Math.max(0, Math.min(move[0], app.duration - length));
  const high = low + length;
  go({ zoom: length >= app.duration ? null : [low, high] });
  return true;
}
