// Where members stand: sites on a circle, the members of a site on a smaller circle around it.
import type { Member } from "../lib/api";

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
}

export const SIZE = { width: 900, height: 560 };

export function arrange(members: Member[]): Layout {
  const groups = new Map<string, Member[]>();
  for (const member of members) {
    const site = member.site || (member.host ? `host ${member.host}` : "");
    groups.set(site, [...(groups.get(site) ?? []), member]);
  }
  const alone = groups.size === members.length || groups.size === 1;
  const list = alone ? members.map((member) => [member.site || member.host, [member]] as const) : [...groups];
  const places = new Map<number, Place>();
  const sites: Spot[] = [];
  const [cx, cy] = [SIZE.width / 2, SIZE.height / 2];
  list.forEach(([name, inside], index) => {
    const angle = (2 * Math.PI * index) / list.length - Math.PI / 2;
    const x = cx + Math.cos(angle) * (list.length === 1 ? 0 : 310);
    const y = cy + Math.sin(angle) * (list.length === 1 ? 0 : 190);
    const radius = inside.length === 1 ? 0 : Math.min(92, 20 + inside.length * 9);
    inside.forEach((member, place) => {
      const turn = (2 * Math.PI * place) / inside.length + angle;
      places.set(member.rank, { x: x + Math.cos(turn) * radius, y: y + Math.sin(turn) * radius });
    });
    sites.push({ name, x, y, radius: radius + 26 });
  });
  return { box: boxAround(places, alone ? [] : sites), places, sites: alone ? [] : sites };
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
