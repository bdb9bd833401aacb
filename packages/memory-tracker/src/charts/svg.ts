// What the charts share: one look, numbers and texts as SVG has them, and an axis in bytes.

import { type ScaleLinear, scaleLinear } from 'd3-scale';
import { byteUnit } from '../format-bytes.js';

const GRID = '#e5e7eb';

/** An SVG that stands by itself, white behind. */
export function svgText(size: { width: number; height: number }, body: readonly string[]): string {
  const { width, height } = size;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" fill="#333">`,
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    ...body,
    '</svg>',
    '',
  ].join('\n');
}

/** A tenth of a pixel is more than a screen shows. */
export function tenths(x: number): number {
  return Math.round(x * 10) / 10;
}

export function escapeXml(text: string): string {
  return text
    .replaceAll(/[\p{Cc}\p{Cs}\uFFFE\uFFFF]/gu, '?') // no XML may hold them, however written
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('"', '&quot;');
}

/**
 * The end of a path of more than `length` characters, from a dot where it has one: it says most.
 */
export function shortened(path: string, length: number): string {
  if (path.length <= length) {
    return path;
  }
  const end = path.slice(path.length - length + 2);
  return `..${end.slice(end.indexOf('.') + 1)}`;
}

/** From 0 to at least `bytes` over pixels, with ticks in one binary unit. */
export class ByteAxis {
  readonly #scale: ScaleLinear<number, number>;
  readonly #unit: { readonly name: string; readonly bytes: number };
  readonly #ticks: readonly number[];

  constructor(bytes: number, range: readonly [number, number], numTicks: number) {
    this.#unit = byteUnit(bytes);
    this.#scale = scaleLinear([0, Math.max(bytes / this.#unit.bytes, 1)], range).nice(numTicks);
    this.#ticks = this.#scale.ticks(numTicks);
  }

  get unitName(): string {
    return this.#unit.name;
  }

  at(bytes: number): number {
    return tenths(this.#scale(bytes / this.#unit.bytes));
  }

  /** Lines across a plot from `left` to `right`, labeled at the left. */
  rows(left: number, right: number): string[] {
    return this.#ticks.map((tick) => {
      const y = tenths(this.#scale(tick));
      return `<line x1="${left}" x2="${right}" y1="${y}" y2="${y}" stroke="${GRID}"/><text x="${left - 8}" y="${y}" dy="0.32em" text-anchor="end">${tick}</text>`;
    });
  }

  /** Lines down a plot from `top` to `bottom`, labeled below. */
  columns(top: number, bottom: number): string[] {
    return this.#ticks.map((tick) => {
      const x = tenths(this.#scale(tick));
      return `<line x1="${x}" x2="${x}" y1="${top}" y2="${bottom}" stroke="${GRID}"/><text x="${x}" y="${bottom + 18}" text-anchor="middle">${tick}</text>`;
    });
  }
}
