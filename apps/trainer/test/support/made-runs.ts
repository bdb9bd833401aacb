// Runs as train leaves them under --out, made without training.

import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { RUN_FILES } from '../../src/files/run-files.js';
import type { EventRecord, StepLine } from '../../src/output/run-records.js';

/** The time of the first step, in ms since the Unix epoch. */
export const BEGUN_MS = 1_700_000_000_000;

export function madeLine(step: number, over: Partial<StepLine> = {}): StepLine {
  return {
    step,
    loss: 4 - step / 1000,
    targets: 64,
    gradNorm: 1 / step,
    lr: 1e-3,
    lossScale: 1,
    skipped: false,
    stepMs: 50,
    tokensPerSecond: 900,
    peakBytes: 4096,
    wireBytes: 2048,
    collectiveMs: 20,
    exposedMs: 5,
    atMs: BEGUN_MS + 50 * step,
    ...over,
  };
}

export interface MadeRun {
  readonly steps?: number;
  readonly config?: Readonly<Record<string, unknown>>;
  readonly end?: Extract<EventRecord, { readonly type: 'runEnd' }>['end'];
  readonly lineOf?: (step: number) => StepLine;
  /** What is in summary.json. */
  readonly summary?: object;
  readonly events?: readonly EventRecord[];
}

/** Makes a run in `directory`, and returns it. */
export function makeRun(directory: string, run: MadeRun = {}): string {
  const { steps = 20, config = {}, end, lineOf = madeLine, summary, events = [] } = run;
  mkdirSync(directory, { recursive: true });
  const begin = { type: 'run', title: 'made', steps: 100, ranks: 1, atMs: BEGUN_MS } as const;
  const last = end === undefined ? [] : [{ type: 'runEnd', end, atMs: BEGUN_MS } as const];
  const all = { steps: 100, ...config };
  const yaml = Object.entries(all).map(([key, value]) => `${key}: ${JSON.stringify(value)}\n`);
  writeFileSync(join(directory, RUN_FILES.config), yaml.join(''));
  writeFileSync(join(directory, RUN_FILES.metrics), '');
  addLines(directory, RUN_FILES.events, [begin, ...events, ...last]);
  const PART = 50_000; // steps of a long run are written in parts, of which each is a text
  for (let first = 1; first <= steps; first += PART) {
    const length = Math.min(PART, steps - first + 1);
    const lines = Array.from({ length }, (_, i) => lineOf(first + i));
    addLines(directory, RUN_FILES.metrics, lines);
  }
  if (summary !== undefined) {
    writeFileSync(join(directory, RUN_FILES.summary), JSON.stringify(summary));
  }
  return directory;
}

/** Appends lines, as a run does. */
export function addLines(directory: string, name: string, lines: readonly object[]): void {
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
  appendFileSync(join(directory, name), text);
}
