// This counts what a warp of 32 asks of memory. The indices in the text of a tile of the matrix
// product are evaluated for each lane, so what is judged is what runs.

export const WARP = 32;
const SECTOR_BYTES = 32;
const BANKS = 32;
/** The bytes that one request of a warp moves at best. A load of vectors takes several requests. */
const REQUEST_BYTES = 128;

type Scope = Record<string, number>;

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

/** Returns the value of a WGSL expression of small u32. */
export function evaluate(expression: string, scope: Scope): number {
  const tokens = expression.match(/\d+|[A-Za-z_][\w.]*|<<|>>|[-+*/%&|()]|\S/g) ?? [];
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
    return known;
  };
  const value = level(0);
  if (at !== words.length) {
    throw new Error(`expected the end at ${words[at]}: ${expression}`);
  }
  return value;
}

export interface WarpCounts {
  /** The sectors that a load touches, for each 128 bytes. 4 are the best. */
  loadSectors: number;
  /** The turns that workgroup memory takes to store a vector of each lane. 4 are the best. */
  stageTurns: number;
  /** The turns that it takes to read a vector of each lane from the block. 4 are the best. */
  readTurns: number;
}

/**
 * Returns the worst counts of one operand, over the first and the last warp and all loads of an
 * invocation.
 */
export function judgeOperand(
  wgsl: string,
  name: 'a' | 'b',
  options: { threads: number; row: number; width: number; bytes: number },
): WarpCounts {
  const { threads, row, width, bytes } = options;
  const stride = Number(
    new RegExp(`var<workgroup> ${name}_block: array<array<vec4<f32>, (\\d+)`).exec(wgsl)![1],
  );
  const slotOf = (scope: Scope, rowText: string, quad: string) =>
    4 * (evaluate(rowText, scope) * stride + evaluate(quad, scope));
  const fetches = [
    ...wgsl.matchAll(new RegExp(`var ${name}_next\\d+ = peek4?_${name}\\((.*)\\);`, 'g')),
  ];
  const stages = [
    ...wgsl.matchAll(new RegExp(`\\{ let value = [^;]*${name}_next\\d+.*?\\}`, 'g')),
  ].map(([text]) => [
    ...text.matchAll(
      new RegExp(`${name}_block\\[(.*?)\\]\\[(.*?)\\](\\[${name}_part\\])? = value`, 'g'),
    ),
  ]);
  const reads = [
    ...wgsl.matchAll(new RegExp(`let \\w+ = ${name}_block\\[(\\d+)\\]\\[(.*?)\\];`, 'g')),
  ];
  if (fetches.length === 0 || fetches.length !== stages.length || reads.length === 0) {
    throw new Error(`${fetches.length} loads and ${stages.length} stores of ${name} were found`);
  }
  const requests = Math.max(1, (WARP * width * bytes) / REQUEST_BYTES);
  const counts = { loadSectors: 0, stageTurns: 0, readTurns: 0 };
  const raise = (key: keyof WarpCounts, value: number) => {
    counts[key] = Math.max(counts[key], value);
  };
  for (const first of new Set([0, threads - WARP])) {
    const lanes = Array.from({ length: WARP }, (_, i) => scopeOf(wgsl, name, first + i, row));
    for (const [, at] of fetches) {
      const starts = lanes.map((scope) => bytes * width * evaluate(at!, scope));
      raise('loadSectors', sectors(starts, width * bytes) / requests);
    }
    for (const stores of stages) {
      const each = stores.map(([, rowText, quad, part]) => {
        const words = lanes.map(
          (scope) =>
            slotOf(scope, rowText!, quad!) +
            (part === undefined ? 0 : Number(scope[`${name}_part`])),
        );
        return turns(words, part === undefined ? 4 : 1);
      });
      raise(
        'stageTurns',
        each.reduce((sum, value) => sum + value, 0),
      );
    }
    for (const [, rowText, quad] of reads) {
      raise(
        'readTurns',
        turns(
          lanes.map((scope) => slotOf(scope, rowText!, quad!)),
          4,
        ),
      );
    }
  }
  return counts;
}

/** Returns the values of the operand's `let`s in the text, for an invocation of the first tile. */
function scopeOf(wgsl: string, name: string, lane: number, row: number): Scope {
  const origin = { [`${name}_base`]: 0, [`first_${name}`]: 0, [`P.${name}_at`]: 0, first_k: 0 };
  const scope: Scope = { lane, ...origin, [`P.${name}_row`]: row };
  for (const [, variable, value] of wgsl.matchAll(
    new RegExp(`^ *let (x|y|${name}_(?!base)\\w+) = (.*);$`, 'gm'),
  )) {
    scope[variable!] = evaluate(value!, scope);
  }
  return scope;
}

export function sectors(starts: readonly number[], width: number): number {
  const touched = new Set<number>();
  for (const start of starts) {
    for (let byte = start; byte < start + width; byte += 2) {
      touched.add(Math.floor(byte / SECTOR_BYTES));
    }
  }
  return touched.size;
}

/**
 * Counts the turns of an access. Lanes are served 128 bytes at a time. Two different words of one
 * bank take two turns, equal words one.
 */
export function turns(words: readonly number[], width: 1 | 4): number {
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
