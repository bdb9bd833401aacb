// A plot for other programs: its numbers as CSV, and itself as a picture.

import type { Drawn, Look } from './layers.js';
import type { StepAxis } from './x-axis.js';

const X_NAMES = { step: 'step', tokens: 'tokens', time: 'seconds' } as const;

/** The values as they are, without any mean: a line a place, as RFC 4180 has it. */
export function csvOf(
  { kind, xs }: Pick<StepAxis, 'kind' | 'xs'>,
  drawn: readonly Drawn[],
): string {
  const rows = [...xs.keys()]
    .filter((i) => drawn.some(({ values }) => values[i] != null))
    .map((i) => [xs[i], ...drawn.map(({ values }) => values[i] ?? '')]);
  const head = [X_NAMES[kind], ...drawn.map(({ name }) => name)];
  return [head, ...rows].map((cells) => `${cells.map(csvCell).join(',')}\r\n`).join('');
}

function csvCell(cell: unknown): string {
  const text = String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export interface PictureParts {
  readonly canvas: HTMLCanvasElement;
  readonly title: string;
  readonly unit: string;
  readonly entries: readonly { readonly name: string; readonly look: Look }[];
  readonly colors: { readonly back: string; readonly text: string; readonly muted: string };
}

const FONT = 'system-ui, sans-serif';
const MARGIN = 16;
const ROW = 20;
const MARK = 26;

/** The plot with its title and legend, which are no part of its own canvas. */
export function pictureOf({
  canvas,
  title,
  unit,
  entries,
  colors,
}: PictureParts): HTMLCanvasElement {
  const picture = document.createElement('canvas');
  const context = picture.getContext('2d')!;
  const scale = devicePixelRatio;
  const width = canvas.width / scale + 2 * MARGIN;
  const rows = legendRows(context, entries, width);
  const top = MARGIN + ROW * (rows.length + 1) + 8;
  picture.width = Math.round(width * scale);
  picture.height = Math.round((top + canvas.height / scale + MARGIN) * scale);
  context.scale(scale, scale);
  context.fillStyle = colors.back;
  context.fillRect(0, 0, picture.width, picture.height);
  context.textBaseline = 'middle';
  context.font = `600 15px ${FONT}`;
  context.fillStyle = colors.text;
  context.fillText(title, MARGIN, MARGIN + ROW / 2);
  const unitAt = MARGIN + context.measureText(title).width + 10;
  context.font = `12px ${FONT}`;
  context.fillStyle = colors.muted;
  context.fillText(unit, unitAt, MARGIN + ROW / 2);
  context.lineWidth = 2;
  for (const [row, marks] of rows.entries()) {
    const y = MARGIN + ROW * (row + 1.5);
    for (const { at, name, look } of marks) {
      context.strokeStyle = look.color;
      context.setLineDash([...look.dash]);
      context.beginPath();
      context.moveTo(at, y);
      context.lineTo(at + MARK, y);
      context.stroke();
      context.fillStyle = colors.text;
      context.fillText(name, at + MARK + 6, y);
    }
  }
  context.drawImage(canvas, MARGIN, top, canvas.width / scale, canvas.height / scale);
  return picture;
}

/** The entries with their places, as many in a row as fit. */
function legendRows(
  context: CanvasRenderingContext2D,
  entries: PictureParts['entries'],
  width: number,
) {
  context.font = `12px ${FONT}`;
  const rows: ({ readonly at: number } & PictureParts['entries'][number])[][] = [[]];
  let at = MARGIN;
  for (const entry of entries) {
    const size = MARK + 6 + context.measureText(entry.name).width + 16;
    if (at > MARGIN && at + size > width) {
      rows.push([]);
      at = MARGIN;
    }
    rows.at(-1)!.push({ at, ...entry });
    at += size;
  }
  return rows;
}

/** Gives the reader a file. */
export function download(name: string, blob: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The browser has begun to read it when the click returns, but not every one is done with it.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A name of a file that every system takes. */
export function fileName(parts: readonly string[], ending: string): string {
  const words = parts.map((part) => part.replace(/[^\w.-]+/g, '-').replace(/^[-.]+|-+$/g, ''));
  return `${words.filter((word) => word !== '').join('-')}.${ending}`;
}
