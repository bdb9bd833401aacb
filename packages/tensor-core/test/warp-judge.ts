// Counts what a warp of 32 asks of memory, from the text of a tile of the matrix product: its functions
// of indices are evaluated for each lane, so that what is judged is what runs.

import type { SharedTile } from '../src/backends/webgpu/kernels/matmul-tiles.js';

export const WARP = 32;
const SECTOR_BYTES = 32;
const BANKS = 32;
/** What one request of a warp moves at best; a load of vectors is served as several of them. */
const REQUEST_BYTES = 128;

type Scope = Record<string, number | ((...values: number[]) => number)>;

const LEVELS = [['|'], ['&'], ['<<', '>>'], ['+', '-'], ['*', '/', '%']];
const APPLY: Record<string, (a: number, b: number) => number> = {
  '|': (a, b) => a | b,
  '&': (a, b) => a & b,
  '<<': (a, b) => a << b,
  '>>': (a, b) => a >> b,
  '+': (a, b) => a + b,
  '-': (a, b) => a - b,
  '*': (a, b) => a * b,
  '/': (a, b) => Math.floor(a / b),
  '%': (a, b) => a % b,
};

/** The value of a WGSL expression of small u32. */
export function evaluate(expression: string, scope: Scope): number {
  const tokens = expression.match(/\d+|[A-Za-z_][\w.]*|<<|>>|[-+*/%&|(),]|\S/g) ?? [];
  const words = tokens.filter((token, i) => !(token === 'u' && /^\d/.test(tokens[i - 1] ?? '')));
  let at = 0;
  const level = (depth: number): number => {
    if (depth === LEVELS.length) {
      return primary();
    }
    let value = level(depth + 1);
    while (LEVELS[depth]!.includes(words[at] ?? '')) {
      const apply = APPLY[words[at++]!]!;
      value = apply(value, level(depth + 1));
    }
    return value;
  };
  const primary = (): number => {
    const word = words[at++]!;
    if (/^\d/.test(word)) {
      return Number(word);
    }
    if (word === '(') {
      const value = level(0);
      at += 1;
      return value;
    }
    const known = scope[word];
    if (known === undefined) {
      throw new Error(`${word} is unknown in: ${expression}`);
    }
    if (typeof known === 'number') {
      return known;
    }
    at += 1;
    const values: number[] = [];
    while (words[at] !== ')') {
      values.push(level(0));
      at += words[at] === ',' ? 1 : 0;
    }
    at += 1;
    return known(...values);
  };
  const value = level(0);
  if (at !== words.length) {
    throw new Error(`expected the end at ${words[at]}: ${expression}`);
  }
  return value;
}

/** The functions of a text that only return an expression. */
export function functionsOf(wgsl: string, params: Readonly<Record<string, number>>): Scope {
  const scope: Scope = Object.fromEntries(
    Object.entries(params).map(([name, value]) => [`P.${name}`, value]),
  );
  for (const [, name, args, body] of wgsl.matchAll(
    /^fn (\w+)\(([^)]*)\) -> u32 \{ return ([^;]*); \}$/gm,
  )) {
    const names = args!.split(',').map((arg) => arg.split(':')[0]!.trim());
    scope[name!] = (...values) =>
      evaluate(body!, { ...scope, ...Object.fromEntries(names.map((n, i) => [n, values[i]!])) });
  }
  return scope;
}

export interface WarpCounts {
  /** Sectors of a load, for each 128 bytes; 4 at best. */
  readonly loadSectors: number;
  /** Turns that workgroup memory takes to store a vector of each lane; 4 at best. */
  readonly stageTurns: number;
  /** The same of a vector read from the block. */
  readonly readTurns: number;
}

/** The worst over the first and the last warp and vectors of an invocation, of one operand. */
export function judgeOperand(
  wgsl: string,
  name: 'a' | 'b',
  options: { tile: SharedTile; row: number; bytes: number; isWide: boolean },
): WarpCounts {
  const { tile, row, bytes, isWide } = options;
  const scope = functionsOf(wgsl, { [`${name}_row`]: row });
  const threads = (tile.m * tile.n) / tile.perThread ** 2;
  const vectors = ((name === 'a' ? tile.m : tile.n) * tile.k) / 4 / threads;
  const stride = Number(
    new RegExp(`var<workgroup> ${name}_block: array<array<vec4<f32>, (\\d+)`).exec(wgsl)![1],
  );
  const call = (fn: string, ...values: number[]) =>
    (scope[`${name}_${fn}`] as (...all: number[]) => number)(...values);
  const place = (u: number) =>
    name === 'a' ? call('at', call('e', u), call('k', u)) : call('at', call('k', u), call('e', u));
  let loadSectors = 0;
  let stageTurns = 0;
  for (const first of warpsOf(threads)) {
    const lanes = Array.from({ length: WARP }, (_, i) => first + i);
    for (let v = 0; v < vectors; v++) {
      for (const q of isWide ? [0] : [0, 1, 2, 3]) {
        const width = (isWide ? 4 : 1) * bytes;
        const touched = lanes.map((lane) => bytes * place(call('unit', lane, v, q)));
        const requests = Math.max(1, (WARP * width) / REQUEST_BYTES);
        loadSectors = Math.max(loadSectors, sectors(touched, width) / requests);
      }
      const stores = stagesOf(wgsl, name).map(({ lets, slot, isVector }) => ({
        isVector,
        words: lanes.map((lane) => {
          const local: Scope = { ...scope, lane, v };
          for (const [variable, value] of lets) {
            local[variable] = evaluate(value, local);
          }
          const [kk, quad, part] = slot.map((index) => evaluate(index, local));
          return 4 * (kk! * stride + quad!) + (part ?? 0);
        }),
      }));
      stageTurns = Math.max(
        stageTurns,
        stores.reduce((sum, { words, isVector }) => sum + turns(words, isVector ? 4 : 1), 0),
      );
    }
  }
  return { loadSectors, stageTurns, readTurns: readTurns(wgsl, name, { stride, threads }) };
}

/** Statements of `a_stage` that store, with the lets before them. */
function stagesOf(wgsl: string, name: string) {
  const body = new RegExp(`fn ${name}_stage\\([^)]*\\) \\{([^}]*)\\}`).exec(wgsl)![1]!;
  const lets: [string, string][] = [];
  const found: { lets: [string, string][]; slot: string[]; isVector: boolean }[] = [];
  for (const statement of body.split(';').map((text) => text.trim())) {
    const declared = /^let (\w+) = (.*)$/s.exec(statement);
    if (declared !== null) {
      lets.push([declared[1]!, declared[2]!]);
      continue;
    }
    const stored = /^\w+_block((?:\[.*\])+) = value/s.exec(statement);
    if (stored !== null) {
      const slot = stored[1]!.slice(1, -1).split('][');
      found.push({ lets: [...lets], slot, isVector: slot.length === 2 });
    }
  }
  return found;
}

function warpsOf(threads: number): number[] {
  return [...new Set([0, threads - WARP])];
}

function readTurns(
  wgsl: string,
  name: 'a' | 'b',
  { stride, threads }: { stride: number; threads: number },
): number {
  const reads = [
    ...wgsl.matchAll(new RegExp(`let \\w+ = ${name}_block\\[(0)\\]\\[(.*?)\\];`, 'g')),
  ];
  const own = (variable: string) => new RegExp(`let ${variable} = (lane [^;]*);`).exec(wgsl)![1]!;
  let most = 0;
  for (const first of warpsOf(threads)) {
    for (const [, kk, quad] of reads) {
      const words = Array.from({ length: WARP }, (_, i) => {
        const lane = first + i;
        const scope = { lane, x: evaluate(own('x'), { lane }), y: evaluate(own('y'), { lane }) };
        return 4 * (evaluate(kk!, scope) * stride + evaluate(quad!, scope));
      });
      most = Math.max(most, turns(words, 4));
    }
  }
  return most;
}

function sectors(starts: readonly number[], width: number): number {
  const touched = new Set<number>();
  for (const start of starts) {
    for (let byte = start; byte < start + width; byte += 2) {
      touched.add(Math.floor(byte / SECTOR_BYTES));
    }
  }
  return touched.size;
}

/** Lanes are served 128 bytes at a time; two words of one bank wait for each other, equal ones do not. */
function turns(words: readonly number[], width: 1 | 4): number {
  const atOnce = WARP / width;
  let total = 0;
  for (let first = 0; first < WARP; first += atOnce) {
    const byBank = new Map<number, Set<number>>();
    for (const word of words.slice(first, first + atOnce)) {
      for (let i = 0; i < width; i++) {
        const bank = (word + i) % BANKS;
        byBank.set(bank, (byBank.get(bank) ?? new Set()).add(word + i));
      }
    }
    total += Math.max(...[...byBank.values()].map(({ size }) => size));
  }
  return total;
}
