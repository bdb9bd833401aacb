// The files of a run under --out: a line a step as it happens, the rest at the end. The model is
// written by rank 0, which has it.

import { existsSync } from 'node:fs';
import { type FileHandle, mkdir, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { UsageError } from '../errors.js';
import type { RankReady, RankReport, StepMetrics } from '../rank/events.js';
import { lossChart } from './loss-chart.js';

/** Names under --out, each of which says that a run is there already. */
export const RUN_FILES = {
  metrics: 'metrics.jsonl',
  summary: 'summary.json',
  chart: 'loss.svg',
  model: 'model',
} as const;

/** The shape of summary.json. */
export interface RunSummary {
  readonly params: number;
  readonly finalLoss: number | null;
  /** For people: the devices of all ranks, each once. */
  readonly device: string;
  readonly ranks: readonly RankReport[];
}

/** @throws UsageError where `directory` holds a run. */
export function refuseUsedDirectory(directory: string): void {
  const found = Object.values(RUN_FILES).find((name) => existsSync(join(directory, name)));
  if (found === undefined) return;
  throw new UsageError(
    `--out: ${directory} already holds a run (${found}). Choose another directory, or remove that one.`,
  );
}

export class RunDirectory {
  readonly #path: string;
  readonly #metrics: FileHandle;
  readonly #losses: number[] = [];
  /** Appends are chained, so that lines stay in order and a failed one is noticed by finish. */
  #written: Promise<unknown> = Promise.resolve();

  private constructor(path: string, metrics: FileHandle) {
    this.#path = path;
    this.#metrics = metrics;
  }

  /** Creates the directory and an empty metrics.jsonl. */
  static async create(path: string): Promise<RunDirectory> {
    refuseUsedDirectory(path);
    await mkdir(path, { recursive: true });
    return new RunDirectory(path, await open(join(path, RUN_FILES.metrics), 'wx'));
  }

  /** Queues a line; the file has it once the promise of `finish` or `close` resolves. */
  step(metrics: StepMetrics): void {
    this.#losses.push(metrics.loss);
    const { step, loss, gradNorm, lr, lossScale, skipped, stepMs, tokensPerSecond } = metrics;
    const line = { step, loss, gradNorm, lr, lossScale, skipped, stepMs, tokensPerSecond };
    this.#written = this.#written.then(() => this.#metrics.write(`${JSON.stringify(line)}\n`));
    this.#written.catch(() => {});
  }

  /** Writes summary.json and loss.svg. Ranks are in rank order. */
  async finish(
    ready: readonly RankReady[],
    reports: readonly RankReport[],
    title: string,
  ): Promise<void> {
    const devices = new Set(ready.map((rank) => `${rank.device} (${rank.description})`));
    const finalLoss = this.#losses.at(-1) ?? null;
    const summary: RunSummary = {
      params: ready[0]!.params,
      finalLoss,
      device: [...devices].join(', '),
      ranks: reports,
    };
    await writeFile(join(this.#path, RUN_FILES.summary), `${JSON.stringify(summary, null, 2)}\n`);
    await writeFile(join(this.#path, RUN_FILES.chart), lossChart(this.#losses, title));
    await this.close();
  }

  /** Waits for the lines and closes the file. Idempotent. */
  async close(): Promise<void> {
    await this.#written;
    await this.#metrics.close();
  }
}
