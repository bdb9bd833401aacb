// The files of a run under --out: one line for each step as it happens, and the rest at the end.
// Rank 0, which has the model, writes it.

import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import { UsageError } from '../errors.js';
import { isDiskFull, namingDisk, whyNotWritten } from '../files/disk-room.js';
import { LineFile } from '../files/line-file.js';
import { makeDirectory } from '../files/make-directory.js';
import { RUN_FILES } from '../files/run-files.js';
import { writeText } from '../files/write-file.js';
import type { FinalWeights, RankCheck, RankReady, RankReport } from '../rank/events.js';
import { describeSystemError } from '../system-error.js';
import type { ElasticChanges } from './elastic-changes.js';
import { numericClassesOf } from './header.js';
import { lossChart } from './loss-chart.js';
import type { EventRecord, RunRecord, StepLine } from './run-records.js';

/** The format of summary.json. */
export interface RunSummary {
  readonly params: number;
  /** The loss of the last step that had targets. */
  readonly finalLoss: number | null;
  /** The loss of the last evaluation; null where nothing was evaluated. */
  readonly validLoss: number | null;
  /** What the last evaluation told beside its loss, such as accuracy; absent for nothing. */
  readonly figures?: StepLine['figures'];
  /** What model/ or adapter/ has. */
  readonly final?: FinalWeights | undefined;
  /** The number of steps that changed nothing, by reason. */
  readonly skippedSteps: { readonly overflow: number; readonly noTargets: number };
  /** The devices of all ranks, each once, for people. */
  readonly device: string;
  /**
   * The numeric classes of all ranks, each once: runs of one class and one configuration have equal
   * bits.
   */
  readonly numericClass: string;
  readonly ranks: readonly RankReport[];
  /** The last step of how many, and why no further one; absent where the model is not here. */
  readonly end?:
    | {
        readonly step: number;
        readonly steps: number;
        readonly why: 'done' | 'patience' | 'time';
        /** The --patience that was over. */
        readonly patience?: number | undefined;
      }
    | undefined;
  /** How the ranks of the last command changed, with --elastic. */
  readonly elastic?: ElasticChanges | undefined;
  /** With --check, what was planned beside what was taken, by rank. */
  readonly check?: readonly RankCheck[] | undefined;
}

/** What the ranks reported, each list in rank order, and how the run ended. */
export interface RanksTold extends Pick<RunSummary, 'end' | 'elastic'> {
  readonly ready: readonly RankReady[];
  readonly reports: readonly RankReport[];
  readonly checks?: readonly RankCheck[] | undefined;
  readonly final?: FinalWeights | undefined;
}

/**
 * Keeps in `file`, and returns, the lines that belong to no step after `step`. The last line of a
 * run that was killed may be cut off.
 */
function cutBehind<Line>(file: string, step: number): Line[] {
  const texts = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  const lines = texts.flatMap((text) => {
    try {
      const line = JSON.parse(text) as Line & { readonly step?: number };
      return (line.step ?? 0) <= step ? [line] : [];
    } catch {
      return [];
    }
  });
  writeText(file, lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
  return lines;
}

/**
 * The directory of a run. Lines are written at once, so that a run that is killed keeps what it has
 * shown.
 */
export class RunDirectory {
  readonly path: string;
  /** The lines of steps before this command's. */
  readonly earlier: readonly StepLine[];
  /** Called with what a person should know of files that can't be written; the run goes on. */
  onWarning: (text: string) => void = () => {};
  readonly #metrics: LineFile;
  readonly #events: LineFile;
  /** The files of lines whose disk has been complained of. */
  readonly #complained = new Set<LineFile>();
  readonly #losses: number[] = [];
  #finalLoss: number | null = null;
  #validLoss: number | null = null;
  #figures: StepLine['figures'];
  readonly #skipped = { overflow: 0, noTargets: 0 };
  #isClosed = false;

  /**
   * Creates the directory, with empty metrics.jsonl and events.jsonl, or goes on with them: both
   * lose their lines of steps after `goesOnAt`, and grow from there. A run that was done is not
   * until it is again. Whoever calls it holds the run; see lockRun.
   * @throws {UsageError} where it can't be made
   */
  constructor(path: string, goesOnAt = 0) {
    this.path = path;
    try {
      makeDirectory(path);
      rmSync(join(path, RUN_FILES.summary), { force: true });
      // The events come first, since they tell whose files the others are.
      const events = join(path, RUN_FILES.events);
      const metrics = join(path, RUN_FILES.metrics);
      cutBehind(events, goesOnAt);
      this.earlier = cutBehind<StepLine>(metrics, goesOnAt);
      for (const line of this.earlier) {
        this.#count(line);
      }
      this.#metrics = new LineFile(metrics);
      this.#events = new LineFile(events);
    } catch (error) {
      if (isDiskFull(error)) {
        throw namingDisk(error, path);
      }
      throw new UsageError(
        `--out: ${path} can't be written (${describeSystemError(error)}). Give a directory that can be made.`,
        { cause: error },
      );
    }
  }

  /**
   * Appends a line to metrics.jsonl or events.jsonl. What a rank reports in each step is written
   * only at steps that double, so that a run of many steps and ranks leaves a short file.
   */
  add(record: RunRecord): void {
    if (record.type === 'step') {
      const { type: _, ...line } = record;
      this.#count(line);
      this.#addLine(this.#metrics, RUN_FILES.metrics, line);
    } else if (record.type !== 'rank' || record.step === pow64(2, floorLog2(record.step))) {
      this.addEvent(record);
    }
  }

  /** Appends any line to events.jsonl. */
  addEvent(record: EventRecord): void {
    this.#addLine(this.#events, RUN_FILES.events, record);
  }

  /** Adds a line, of which a run at work never waits or ends: it complains once of each file. */
  #addLine(file: LineFile, name: string, line: object): void {
    if (this.#isClosed) {
      return; // what is told of the files themselves, after the end
    }
    try {
      file.add(JSON.stringify(line));
    } catch (error) {
      if (!this.#complained.has(file)) {
        this.#complained.add(file);
        this.onWarning(
          `${whyNotWritten(error, join(this.path, name))} The run goes on, and its lines are written when there is room.`,
        );
      }
    }
  }

  /** Writes a file beside the lines, and warns where that fails: it is not what the run is for. */
  leave(name: string, text: () => string): void {
    const path = join(this.path, name);
    try {
      writeText(path, text());
    } catch (error) {
      this.onWarning(`${name} is left out: ${whyNotWritten(error, path)}`);
    }
  }

  #count({ loss, targets, skipped, validLoss, figures }: StepLine): void {
    this.#losses.push(loss ?? Number.NaN);
    if (targets > 0) {
      this.#finalLoss = loss;
    }
    if (skipped) {
      this.#skipped[targets === 0 ? 'noTargets' : 'overflow'] += 1;
    }
    this.#validLoss = validLoss ?? this.#validLoss;
    this.#figures = figures ?? this.#figures;
  }

  /**
   * Leaves loss.svg and, as the last file of a run, by which it is known to be done, summary.json.
   */
  finish({ ready, reports, checks, final, elastic, end }: RanksTold, title: string): void {
    const devices = new Set(ready.map((rank) => `${rank.device} (${rank.description})`));
    const summary: RunSummary = {
      params: ready[0]!.params,
      finalLoss: this.#finalLoss,
      validLoss: this.#validLoss,
      ...(this.#figures && { figures: this.#figures }),
      final,
      skippedSteps: this.#skipped,
      device: [...devices].join(', '),
      numericClass: numericClassesOf(ready).join('; '),
      ranks: reports,
      elastic,
      end,
      check: checks,
    };
    this.leave(RUN_FILES.chart, () => lossChart(this.#losses, title));
    this.leave(RUN_FILES.summary, () => `${JSON.stringify(summary, null, 2)}\n`);
  }

  /** Closes the files of lines. Idempotent. */
  close(): void {
    if (this.#isClosed) {
      return;
    }
    this.#isClosed = true;
    const lost = [this.#metrics, this.#events].map((file) => file.close());
    for (const [i, name] of [RUN_FILES.metrics, RUN_FILES.events].entries()) {
      if (lost[i]! > 0) {
        this.onWarning(`${join(this.path, name)} lacks its last ${lost[i]} lines.`);
      }
    }
  }
}
