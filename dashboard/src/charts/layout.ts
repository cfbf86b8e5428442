// Positions of members: on a map if all sites have known coordinates, otherwise with the sites on a circle. The members
// of a site lie on a smaller circle around it.
import type { Member } from "../lib/api";
import { LAND } from "./land";

export interface Point {
  x: number;
  y: number;
}
export interface SiteCircle extends Point {
  name: string;
  radius: number;
}
export interface Layout {
  // x, y, width and height of the whole drawing.
  box: string;
  places: Map<number, Point>;
  sites: SiteCircle[];
  // Outlines of land; empty if this is not a map.
  land: string[];
}

export const SIZE = { width: 900, height: 560 };
const MARGIN = { x: 90, y: 70 };
// Minimum distance between the circles of two sites.
const APART = 46;

export function arrange(members: Member[]): Layout {
  const groups = new Map<string, Member[]>();
  for (const member of members) {
    const site = member.site || (member.host ? `host ${member.host}` : "");
    groups.set(site, [...(groups.get(site) ?? []), member]);
  }
  const alone = groups.size === members.length || groups.size === 1;
  const mapped = members.length > 0 && members.every((member) => member.latitude != null && member.longitude != null);
  if (mapped) return onMap([...groups]);
  const list = alone ? members.map((member) => [member.site || member.host, [member]] as const) : [...groups];
  const places = new Map<number, Point>();
  const sites: SiteCircle[] = [];
  const [cx, cy] = [SIZE.width / 2, SIZE.height / 2];
  list.forEach(([name, inside], index) => {
    const angle = (2 * Math.PI * index) / list.length - Math.PI / 2;
    const x = cx + Math.cos(angle) * (list.length === 1 ? 0 : 310);
    const y = cy + Math.sin(angle) * (list.length === 1 ? 0 : 190);
    sites.push(placeMembers({ name, x, y, radius: 0 }, inside, places, angle));
  });
  return { box: boxAround(places, alone ? [] : sites), places, sites: alone ? [] : sites, land: [] };
}

// Puts the members of a site on a circle around it; a single member lies in the middle.
function placeMembers(site: SiteCircle, inside: readonly Member[], places: Map<number, Point>, angle: number): SiteCircle {
  const radius = inside.length === 1 ? 0 : Math.min(92, 20 + inside.length * 9);
  inside.forEach((member, index) => {
    const turn = (2 * Math.PI * index) / inside.length + angle;
    places.set(member.rank, { x: site.x + Math.cos(turn) * radius, y: site.y + Math.sin(turn) * radius });
  });
  return { ...site, radius: radius + 26 };
}

// Equirectangular projection, scaled so that the part of the world with sites fills the drawing.
function onMap(groups: [string, Member[]][]): Layout {
  const [west, east, south, north] = extent(groups.map(([, inside]) => [inside[0]!.longitude!, inside[0]!.latitude!]));
  const scale = Math.min((SIZE.width - 2 * MARGIN.x) / (east - west), (SIZE.height - 2 * MARGIN.y) / (north - south));
  const project = ([longitude, latitude]: [number, number]): Point => ({
    x: SIZE.width / 2 + (longitude - (west + east) / 2) * scale,
    y: SIZE.height / 2 - (latitude - (south + north) / 2) * scale,
  });
  const circles = groups.map(([name, inside]) => ({
    ...project([inside[0]!.longitude!, inside[0]!.latitude!]),
    name: name.replace(/^host /, "").replace(/\s*@.*$/, ""),
    radius: inside.length === 1 ? 0 : Math.min(92, 20 + inside.length * 9),
  }));
  spread(circles);
  const places = new Map<number, Point>();
  const sites = circles.map((circle, index) => placeMembers(circle, groups[index]![1], places, 0));
  const land = LAND.map((coast) => `M${coast.map((at) => { const { x, y } = project(at); return `${x.toFixed(0)} ${y.toFixed(0)}`; }).join("L")}Z`);
  // Full width, the height that the sites need, and nothing beyond the poles.
  const [top, bottom] = [Math.min(...sites.map((at) => at.y - at.radius)) - 60, Math.max(...sites.map((at) => at.y + at.radius)) + 60];
  const height = Math.max(bottom - top, SIZE.height * 0.62);
  const middle = (top + bottom - height) / 2;
  const first = Math.min(top, Math.max(middle, project([0, 84]).y));
  return { box: `0 ${first} ${SIZE.width} ${height}`, places, sites, land };
}

// The shown part of the map: all sites, at least 24 by 14 degrees, and the whole world if they span over 150 degrees.
function extent(points: [number, number][]): [number, number, number, number] {
  const [longitudes, latitudes] = [points.map((at) => at[0]), points.map((at) => at[1])];
  const widen = (low: number, high: number, least: number) => {
    const more = Math.max(0, least - (high - low)) / 2;
    return [low - more, high + more] as const;
  };
  const across = Math.max(...longitudes) - Math.min(...longitudes);
  const [west, east] = across > 150 ? [-140, 160] : widen(Math.min(...longitudes), Math.max(...longitudes), 24);
  const [south, north] = widen(Math.min(...latitudes), Math.max(...latitudes), 14);
  return [west, east, south, north];
}

// Pushes overlapping sites apart in small steps; their positions stay correct within a few pixels.
function spread(circles: SiteCircle[]): void {
  for (let round = 0; round < 60; round += 1) {
    for (let i = 0; i < circles.length; i += 1) {
      for (let j = i + 1; j < circles.length; j += 1) {
        const [a, b] = [circles[i]!, circles[j]!];
        const [dx, dy] = [b.x - a.x || 0.1, b.y - a.y || 0.1];
        const far = Math.hypot(dx, dy);
        const lacking = APART + a.radius + b.radius - far;
        if (lacking <= 0) continue;
        const [px, py] = [(dx / far) * lacking * 0.25, (dy / far) * lacking * 0.25];
        Object.assign(a, { x: a.x - px, y: a.y - py });
        Object.assign(b, { x: b.x + px, y: b.y + py });
      }
    }
  }
}

function boxAround(places: Map<number, Point>, sites: SiteCircle[]): string {
  const around = [...places.values()].map((place) => ({ ...place, radius: 30 })).concat(sites);
  const [left, right] = [Math.min(...around.map((a) => a.x - a.radius)), Math.max(...around.map((a) => a.x + a.radius))];
  const [top, bottom] = [Math.min(...around.map((a) => a.y - a.radius)), Math.max(...around.map((a) => a.y + a.radius))];
  return around.length ? `${left - 50} ${top - 28} ${right - left + 100} ${bottom - top + 56}` : "0 0 100 60";
}

// An arc from a to b, bent to one side so that both directions and several trees do not overlap.
export function arc(a: Point, b: Point, bend: number, trim = 13): string {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const length = Math.hypot(dx, dy) || 1;
  const [nx, ny] = [-dy / length, dx / length];
  const middle = { x: (a.x + b.x) / 2 + nx * bend, y: (a.y + b.y) / 2 + ny * bend };
  const cut = (from: Point): Point => {
    const [x, y] = [middle.x - from.x, middle.y - from.y];
    const far = Math.hypot(x, y) || 1;
    return { x: from.x + (x / far) * trim, y: from.y + (y / far) * trim };
  };
  const [start, end] = [cut(a), cut(b)];
  return `M${start.x.toFixed(1)} ${start.y.toFixed(1)}Q${middle.x.toFixed(1)} ${middle.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`;
}
