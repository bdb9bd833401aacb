// What the charts share: one look, numbers and texts in the form that SVG needs, and an axis in
// bytes.

import { byteUnit } from '@shardweave/dtypes/messages';
import { type ScaleLinear, scaleLinear } from 'd3-scale';

const GRID = '#e5e7eb';

/** An SVG with a white background that stands by itself. */
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

/** Rounds to a tenth of a pixel, which is finer than a screen shows. */
export function tenths(x: number): number {
  return Math.round(x * 10) / 10;
}

export function escapeXml(text: string): string {
  return text
    .replaceAll(/[\p{Cc}\p{Cs}\uFFFE\uFFFF]/gu, '?') // XML may hold none of these, not even escaped
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('"', '&quot;');
}

/**
 * Shortens a path of more than `length` characters to its end, which says most; it is cut at a dot
 * where there is one.
 */
export function shortened(path: string, length: number): string {
  if (path.length <= length) {
    return path;
  }
  const end = path.slice(path.length - length + 2);
  return `..${end.slice(end.indexOf('.') + 1)}`;
}

/** An axis from 0 to at least `bytes` over a number of pixels, with ticks in one binary unit. */
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

  /** The ticks as lines across a plot from `left` to `right`, labeled at the left. */
  rows(left: number, right: number): string[] {
    return this.#ticks.map((tick) => {
      const y = tenths(this.#scale(tick));
      return `<line x1="${left}" x2="${right}" y1="${y}" y2="${y}" stroke="${GRID}"/><text x="${left - 8}" y="${y}" dy="0.32em" text-anchor="end">${tick}</text>`;
    });
  }

  /** The ticks as lines down a plot from `top` to `bottom`, labeled below. */
  columns(top: number, bottom: number): string[] {
    return this.#ticks.map((tick) => {
      const x = tenths(this.#scale(tick));
      return `<line x1="${x}" x2="${x}" y1="${top}" y2="${bottom}" stroke="${GRID}"/><text x="${x}" y="${bottom + 18}" text-anchor="middle">${tick}</text>`;
    });
  }
}
