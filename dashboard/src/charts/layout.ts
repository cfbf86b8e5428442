// Where members stand: on a map where every site's place is known, else sites on a circle. The members of a site stand
// on a smaller circle around it.
import type { Member } from "../lib/api";
import { LAND } from "./land";

export interface Place {
  x: number;
  y: number;
}
export interface Spot extends Place {
  name: string;
  radius: number;
}
export interface Layout {
  // x, y, width and height that hold everything.
  box: string;
  places: Map<number, Place>;
  sites: Spot[];
  // Outlines of land, where this is a map.
  land: string[];
}

export const SIZE = { width: 900, height: 560 };
const MARGIN = { x: 90, y: 70 };
// Members are drawn with this radius, and sites must not cover each other.
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
  const places = new Map<number, Place>();
  const sites: Spot[] = [];
  const [cx, cy] = [SIZE.width / 2, SIZE.height / 2];
  list.forEach(([name, inside], index) => {
    const angle = (2 * Math.PI * index) / list.length - Math.PI / 2;
    const x = cx + Math.cos(angle) * (list.length === 1 ? 0 : 310);
    const y = cy + Math.sin(angle) * (list.length === 1 ? 0 : 190);
    sites.push(settle({ name, x, y, radius: 0 }, inside, places, angle));
  });
  return { box: boxAround(places, alone ? [] : sites), places, sites: alone ? [] : sites, land: [] };
}

// Puts the members of a site on a circle around it; a lone one stands in the middle.
function settle(site: Spot, inside: readonly Member[], places: Map<number, Place>, angle: number): Spot {
  const radius = inside.length === 1 ? 0 : Math.min(92, 20 + inside.length * 9);
  inside.forEach((member, index) => {
    const turn = (2 * Math.PI * index) / inside.length + angle;
    places.set(member.rank, { x: site.x + Math.cos(turn) * radius, y: site.y + Math.sin(turn) * radius });
  });
  return { ...site, radius: radius + 26 };
}

// Degrees to the drawing: equal steps of longitude and latitude, the part of the world with sites in it as large as fits.
function onMap(groups: [string, Member[]][]): Layout {
  const [west, east, south, north] = extent(groups.map(([, inside]) => [inside[0]!.longitude!, inside[0]!.latitude!]));
  const scale = Math.min((SIZE.width - 2 * MARGIN.x) / (east - west), (SIZE.height - 2 * MARGIN.y) / (north - south));
  const project = ([longitude, latitude]: [number, number]): Place => ({
    x: SIZE.width / 2 + (longitude - (west + east) / 2) * scale,
    y: SIZE.height / 2 - (latitude - (south + north) / 2) * scale,
  });
  const spots = groups.map(([name, inside]) => ({
    ...project([inside[0]!.longitude!, inside[0]!.latitude!]),
    name: name.replace(/^host /, "").replace(/\s*@.*$/, ""),
    radius: inside.length === 1 ? 0 : Math.min(92, 20 + inside.length * 9),
  }));
  spread(spots);
  const places = new Map<number, Place>();
  const sites = spots.map((spot, index) => settle(spot, groups[index]![1], places, 0));
  const land = LAND.map((coast) => `M${coast.map((at) => { const { x, y } = project(at); return `${x.toFixed(0)} ${y.toFixed(0)}`; }).join("L")}Z`);
  // As wide as the drawing, as high as what is on it needs, and nothing beyond the poles.
  const [top, bottom] = [Math.min(...sites.map((at) => at.y - at.radius)) - 60, Math.max(...sites.map((at) => at.y + at.radius)) + 60];
  const height = Math.max(bottom - top, SIZE.height * 0.62);
  const middle = (top + bottom - height) / 2;
  const first = Math.min(top, Math.max(middle, project([0, 84]).y));
  return { box: `0 ${first} ${SIZE.width} ${height}`, places, sites, land };
}

// What the map shows: all sites, never less than a third of a continent, and all around where sites are on both sides.
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

// Sites that would cover each other are pushed apart, a little at a time; a dot a few pixels off still says where it is.
function spread(spots: Spot[]): void {
  for (let round = 0; round < 60; round += 1) {
    for (let i = 0; i < spots.length; i += 1) {
      for (let j = i + 1; j < spots.length; j += 1) {
        const [a, b] = [spots[i]!, spots[j]!];
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

function boxAround(places: Map<number, Place>, sites: Spot[]): string {
  const around = [...places.values()].map((place) => ({ ...place, radius: 30 })).concat(sites);
  const [left, right] = [Math.min(...around.map((a) => a.x - a.radius)), Math.max(...around.map((a) => a.x + a.radius))];
  const [top, bottom] = [Math.min(...around.map((a) => a.y - a.radius)), Math.max(...around.map((a) => a.y + a.radius))];
  return around.length ? `${left - 50} ${top - 28} ${right - left + 100} ${bottom - top + 56}` : "0 0 100 60";
}

// An arc from a to b that bends to its own side, so that the two directions and several trees do not cover each other.
export function arc(a: Place, b: Place, bend: number, trim = 13): string {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const length = Math.hypot(dx, dy) || 1;
  const [nx, ny] = [-dy / length, dx / length];
  const middle = { x: (a.x + b.x) / 2 + nx * bend, y: (a.y + b.y) / 2 + ny * bend };
  const cut = (from: Place): Place => {
    const [x, y] = [middle.x - from.x, middle.y - from.y];
    const far = Math.hypot(x, y) || 1;
    return { x: from.x + (x / far) * trim, y: from.y + (y / far) * trim };
  };
  const [start, end] = [cut(a), cut(b)];
  return `M${start.x.toFixed(1)} ${start.y.toFixed(1)}Q${middle.x.toFixed(1)} ${middle.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`;
}
