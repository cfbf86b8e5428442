// The server's responses (see /api/openapi.json) and the function that requests them.

export interface RunBrief {
  id: string;
  name: string;
  started: number | null;
  duration: number;
  world_size: number;
  ranks: number[];
  steps: number;
  live: boolean;
  status: "waiting" | "running" | "failed" | "ended";
  level: string;
  changed: number;
}
export interface Split {
  seconds: number;
  compute: number;
  encode: number;
  wire: number;
  wait: number;
}
export interface Decision {
  at: number;
  step: number;
  level: string;
  reason: string;
  version: number;
}
export interface Verdict {
  tone: "good" | "even" | "bad" | "open";
  headline: string;
  warning: string;
  time: string;
  changed: string;
  next: string[];
}
export interface Overview {
  run: RunBrief;
  verdict: Verdict;
  parameters: number;
  steps_per_second: number | null;
  split: Split | null;
  predicted_plain: number | null;
  speedup: number | null;
  step_mean: number | null;
  gradient_bytes: number;
  wire_bytes: number;
  plain_bytes: number;
  network: {
    bandwidth: number | null;
    rtprop: number | null;
    queueing: number;
    loss: number;
    confidence: number;
  } | null;
  recent: Decision[];
  note: {
    at: number;
    step: number;
    loss: number | null;
    accuracy: number | null;
    epoch: number | null;
    total_steps: number | null;
  } | null;
  seconds_left: number | null;
  faults: number;
  guard: { count: number; step: number; headline: string; detail: string } | null;
  local_steps: {
    outer_steps: number;
    sync_every: number;
    fragments: number;
    delay: number;
    alignment: number | null;
    norm: number | null;
    outer_norm: number | null;
    waited: number;
    headline: string;
  } | null;
  carried: { transport: string; step: number; reason: string } | null;
}
export interface Series {
  name: string;
  unit: string;
  at: number[];
  low: number[];
  high: number[];
  mean: number[];
}
export interface SeriesData {
  start: number;
  end: number;
  series: Series[];
}
export interface Decisions {
  decisions: Decision[];
  left_out: number;
}
export interface Tree {
  root: number;
  share: number;
  up: [number, number][];
  down: [number, number][];
}
export interface Plan {
  at: number;
  step: number;
  version: number;
  planner: string;
  reason: string;
  predicted: number;
  trees: Tree[];
  routes: { path: number[]; side: boolean }[];
}
export interface Member {
  rank: number;
  host: string;
  site: string;
  latitude: number | null;
  longitude: number | null;
}
export interface Topology {
  members: Member[];
  plans: Plan[];
}
export interface Link {
  source: number;
  destination: number;
  rate: number | null;
  rtt: number | null;
  rtprop: number | null;
  loss: number | null;
  queueing: number | null;
  window: number | null;
  age: number;
  load: number | null;
}
export interface Links {
  members: Member[];
  links: Link[];
}
export interface Pair {
  source: number;
  destination: number;
  transfers: number;
  nbytes: number;
  missing: number;
  returned: number;
  retransmitted: number;
  seconds: number;
  closes: Record<string, number>;
}
export interface Transport extends Omit<Pair, "source" | "destination" | "seconds"> {
  pairs: Pair[];
}
export interface Fault {
  at: number;
  rank: number | null;
  step: number | null;
  kind: string;
  detail: string;
  ranks: number[];
}
export interface Faults {
  faults: Fault[];
  left_out: number;
}
export interface Configuration {
  config: Record<string, unknown>;
  gradwire: string;
  torch: string;
  members: Member[];
  differing: { rank: number; setting: string; value: string }[];
}

export async function ask<T>(run: string, what: string, query: Record<string, string | number | string[]> = {}): Promise<T> {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  const response = await fetch(`/api/runs/${encodeURIComponent(run)}/${what}?${search}`);
  const body: unknown = await response.json();
  if (!response.ok) throw new Error((body as { error: string }).error);
  return body as T;
}
