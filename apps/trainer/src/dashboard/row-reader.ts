// Reads of a run what its row in a table needs: of a run that is done the ends of its files, of any
// other one the evaluations too, and afterwards only what was added.

import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { GrowingFile, tailOf } from '../files/growing-file.js';
import { RUN_FILES } from '../files/run-files.js';
import { endAfter } from '../output/report.js';
import type { RunSummary } from '../output/run-directory.js';
import type { RunEndKind, RunRecord, StepLine } from '../output/run-records.js';
import type { RunRow, Setting } from '../page/run/page-data.js';
import { standingOf } from '../saves/run-standing.js';

/** The end of a file in which its last lines are, unless a reason or a group of ranks is huge. */
const TAIL_BYTES = 16 * 1024;
const LONG_TAIL_BYTES = 2 ** 20;
/** What differs between all runs without being a choice. */
const NO_SETTINGS = ['out', 'cache'];
/** What is looked at for changes: the directory is where a command that goes on has its lock. */
const STAMPED = ['', RUN_FILES.metrics, RUN_FILES.events, RUN_FILES.config, RUN_FILES.summary];
/** How a line with an evaluation is found without parsing all of them. */
const EVALUATED = '"validLoss":';

export class RowReader {
  readonly directory: string;
  readonly #id: string;
  readonly #name: string;
  /** The metrics of a run that is not done. */
  #metrics: GrowingFile | undefined;
  /** The state of the files when they were last read. */
  #seen = '';
  #end: RunEndKind | undefined;
  #last: StepLine | undefined;
  #loss: number | undefined;
  #validLoss: number | undefined;
  #settings: Readonly<Record<string, Setting>> = {};
  /** The row that was told last, as a text. */
  #told = '';
  /** Whether nothing changes as long as no file does. */
  #isOver = false;

  constructor(directory: string, { id, name }: Pick<RunRow, 'id' | 'name'>) {
    this.directory = directory;
    this.#id = id;
    this.#name = name;
  }

  /** The row, where it is new or differs from that of the last call; else undefined. */
  async next(): Promise<RunRow | undefined> {
    const stamp = STAMPED.map((name) => stampOf(join(this.directory, name))).join(' ');
    if (stamp !== this.#seen) {
      this.#seen = stamp;
      this.#read();
    } else if (this.#isOver) {
      return undefined;
    }
    const row = await this.#row();
    const text = JSON.stringify(row);
    if (text === this.#told) {
      return undefined;
    }
    this.#told = text;
    return row;
  }

  #read(): void {
    this.#settings = settingsOf(join(this.directory, RUN_FILES.config));
    this.#end = endIn(join(this.directory, RUN_FILES.events));
    const metrics = join(this.directory, RUN_FILES.metrics);
    const summary = this.#end === 'done' ? summaryOf(this.directory) : undefined;
    if (summary?.final !== undefined) {
      this.#metrics = undefined;
      this.#begin();
      this.#note(tailOf(metrics, TAIL_BYTES));
      this.#validLoss = summary.final.best?.validLoss ?? summary.validLoss ?? undefined;
      this.#loss = summary.finalLoss ?? this.#loss;
      return;
    }
    if (this.#metrics === undefined) {
      this.#metrics = new GrowingFile(metrics);
      this.#begin();
    }
    for (const text of this.#metrics.read(() => this.#begin())) {
      this.#note(text);
    }
  }

  /** Forgets the steps, which are read from the start. */
  #begin(): void {
    this.#last = undefined;
    this.#loss = undefined;
    this.#validLoss = undefined;
  }

  /** Notes what some lines say of the last step, the loss and the best evaluation. */
  #note(text: string): void {
    const { last, loss } = lastOf(text);
    this.#last = last ?? this.#last;
    this.#loss = loss ?? this.#loss;
    for (let at = text.indexOf(EVALUATED); at >= 0; at = text.indexOf(EVALUATED, at + 1)) {
      const value = Number.parseFloat(text.slice(at + EVALUATED.length, at + 40));
      if (Number.isFinite(value)) {
        this.#validLoss = Math.min(value, this.#validLoss ?? Infinity);
      }
    }
  }

  async #row(): Promise<RunRow> {
    const { step = 0, atMs, tokensPerSecond, peakBytes } = this.#last ?? {};
    const lastMs = atMs ?? mtimeOf(join(this.directory, RUN_FILES.events));
    const { state, sign } = await standingOf(this.directory, {
      ...(this.#end && { end: this.#end }),
      ...(lastMs !== undefined && { lastMs }),
    });
    this.#isOver = state !== 'live' && sign === undefined;
    const steps = Number(this.#settings.steps);
    return {
      id: this.#id,
      name: this.#name,
      state,
      ...(sign !== undefined && { sign }),
      step,
      steps: Number.isFinite(steps) ? steps : undefined,
      loss: this.#loss,
      validLoss: this.#validLoss,
      tokensPerSecond,
      peakBytes,
      atMs: lastMs,
      settings: this.#settings,
    };
  }
}

/** What changes when a file is written. */
function stampOf(path: string): string {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? '-' : `${found.ino}.${found.size}.${found.mtimeMs}`;
}

function mtimeOf(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs;
}

/** The last line, and the last loss that is a number. */
function lastOf(text: string): { readonly last?: StepLine; readonly loss?: number } {
  let last: StepLine | undefined;
  for (let end = text.length - 1; end > 0; ) {
    const start = text.lastIndexOf('\n', end - 1) + 1;
    const line = lineOf(text.slice(start, end));
    last ??= line;
    if (last !== undefined && line?.loss != null) {
      return { last, loss: line.loss };
    }
    end = start - 1;
  }
  return last === undefined ? {} : { last };
}

function lineOf(text: string): StepLine | undefined {
  try {
    return JSON.parse(text) as StepLine;
  } catch {
    return undefined; // another program's, or a disk's
  }
}

/** How the events end: the last ones of a run that has ended say so. */
function endIn(path: string): RunEndKind | undefined {
  const last = (text: string) => text.split('\n').at(-2);
  const line = last(tailOf(path, TAIL_BYTES)) ?? last(tailOf(path, LONG_TAIL_BYTES));
  const record = line === undefined ? undefined : (lineOf(line) as unknown as RunRecord);
  return record && endAfter(record, undefined);
}

function summaryOf(directory: string): RunSummary | undefined {
  try {
    return JSON.parse(readFileSync(join(directory, RUN_FILES.summary), 'utf8')) as RunSummary;
  } catch {
    return undefined; // A run that was done on another machine may not have it here yet.
  }
}

/** The values of a config.yaml; empty where there is none, or another program's. */
function settingsOf(path: string): Record<string, Setting> {
  let values: unknown;
  try {
    values = parse(readFileSync(path, 'utf8'));
  } catch {
    return {};
  }
  if (typeof values !== 'object' || values === null) {
    return {};
  }
  const kept = Object.entries(values).filter(([name]) => !NO_SETTINGS.includes(name));
  return Object.fromEntries(kept.map(([name, value]) => [name, settingOf(value)]));
}

function settingOf(value: unknown): Setting {
  return ['string', 'number', 'boolean'].includes(typeof value)
    ? (value as Setting)
    : JSON.stringify(value);
}
