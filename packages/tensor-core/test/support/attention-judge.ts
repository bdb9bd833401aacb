// This counts what a warp of 32 asks of memory in a tile of attention: loads of an operand's
// slices, stores of them to workgroup memory, and the reads that feed the products. As for the
// products, the indices in the text are evaluated for each lane, so what is judged is what runs.

import { evaluate, sectors, turns, WARP } from './warp-judge.js';

export interface AttentionCounts {
  /** The sectors that a load touches, for each 128 bytes. 4 are the best. */
  readonly loadSectors: number;
  /** The turns that workgroup memory takes to store a vector of each lane. 4 are the best. */
  readonly stageTurns: number;
  /** The turns that it takes to read a vector of each lane. 4 are the best. */
  readonly readTurns: number;
}

const REQUEST_BYTES = 128;

interface TileText {
  readonly wgsl: string;
  readonly threads: number;
  readonly across: number;
  readonly down: number;
  readonly quads: number;
  /** Elements between the rows of an operand. */
  readonly row: number;
  readonly bytes: number;
}

export function judgeAttention(tile: TileText): AttentionCounts {
  const { wgsl, threads, across, down, quads, row, bytes } = tile;
  const counts = { loadSectors: 0, stageTurns: 0, readTurns: 0 };
  const raise = (key: keyof AttentionCounts, value: number) => {
    counts[key] = Math.max(counts[key], value);
  };
  const functions = new Map(
    [...wgsl.matchAll(/fn (\w+)\(u: u32\) -> u32 \{ return (.*); \}/g)].map(
      ([, name, body]) => [name!, body!] as const,
    ),
  );
  /** The value of an expression for a unit, with the index functions of the text written out. */
  const valueAt = (expression: string, scope: Record<string, number>): number => {
    let text = expression;
    for (let i = 0; i < 4; i++) {
      text = text.replace(/(\w+)\(u\)/g, (_, name: string) => `(${functions.get(name)})`);
    }
    return evaluate(text, scope);
  };
  const blockOf = (name: string): Block => {
    const found = new RegExp(`var<workgroup> ${name}: (?:array<)+vec4<f32>, (.*?)>;`).exec(wgsl);
    return { extents: found![1]!.split(/>?, /).map((extent) => Number.parseInt(extent, 10)) };
  };
  const [left, right] = [blockOf('left'), blockOf('right')];
  for (const first of new Set([0, threads - WARP].filter((start) => start >= 0))) {
    const lanes = Array.from({ length: WARP }, (_, i) => first + i);
    for (const [, name, , body] of fetchesOf(wgsl)) {
      const at = / let at = (.*);/.exec(body!)![1]!;
      const d = / let d = (.*);/.exec(body!)![1]!;
      const starts = lanes.map((u) => {
        const known = { u, d0: 0, base: 0, first: 0, [`P.${name}_row`]: row };
        const scope = { ...known, 'P.heads': 1, 'P.dim': row, d: valueAt(d, known) };
        // All rows of the slice are there, so that the clamp to the last one does nothing.
        return bytes * valueAt(at.replace(/min\((.*), P\.\w+ - 1u\)/, '($1)'), scope);
      });
      raise('loadSectors', (sectors(starts, 4 * bytes) * REQUEST_BYTES) / (WARP * 4 * bytes));
    }
    for (const [, , body] of wgsl.matchAll(/fn (\w+)_stage\(u: u32, .*?\) \{(.*?)(?=\nfn )/gs)) {
      const lets = [...body!.matchAll(/let (\w+) = (.*?);/g)];
      const stores = [...body!.matchAll(/(left|right)((?:\[[^\]]*\])+) = value(\[\du\])?/g)];
      const each = stores.map(([, side, indices, part]) => {
        const words = lanes.map((u) => {
          const scope: Record<string, number> = { u };
          for (const [, variable, value] of lets) {
            scope[variable!] = valueAt(value!, scope);
          }
          const numbers = indicesOf(indices!).map((text) => valueAt(text, scope));
          return wordOf(side === 'left' ? left : right, numbers, part !== undefined);
        });
        return turns(words, stores[0]![3] === undefined ? 4 : 1);
      });
      raise(
        'stageTurns',
        each.reduce((sum, value) => sum + value, 0),
      );
    }
    const ofLanes = (text: string) =>
      lanes.map((lane) => evaluate(text, { x: lane % across, y: Math.floor(lane / across) }));
    for (let h = 0; h < 2; h++) {
      const rows = ofLanes(`y + ${h * down}u`).map((at) => wordOf(left, [0, 0, 0, at], false));
      raise('readTurns', turns(rows, 4));
    }
    for (let q = 0; q < quads; q++) {
      const columns = ofLanes(`x + ${q * across}u`).map((at) => wordOf(right, [0, 0, at], false));
      raise('readTurns', turns(columns, 4));
    }
  }
  return counts;
}

interface Block {
  /** Innermost first: the vectors of a row, and how many of each there are. */
  readonly extents: readonly number[];
}

/** The functions that load a vector: their text, operand, order and body. */
function fetchesOf(wgsl: string): RegExpMatchArray[] {
  const found = [
    ...wgsl.matchAll(/fn (q|k|v|d_out)_(turned|flat)\(base: u32, .*?\) -> vec4<f32> \{(.*?)\n\}/gs),
  ];
  if (found.length === 0) {
    throw new Error('expected functions that load slices, found none');
  }
  return found;
}

function indicesOf(text: string): string[] {
  return [...text.matchAll(/\[([^\]]*)\]/g)].map(([, index]) => index!);
}

/** The word of workgroup memory of an element; with `isPart` the last index is one of four. */
function wordOf({ extents }: Block, indices: readonly number[], isPart: boolean): number {
  const vector = isPart ? indices.slice(0, -1) : indices;
  const at = vector.reduce((sum, index, i) => {
    const extent = i === 0 ? 1 : extents[vector.length - 1 - i]!;
    return sum * extent + index;
  }, 0);
  return 4 * at + (isPart ? indices.at(-1)! : 0);
}
