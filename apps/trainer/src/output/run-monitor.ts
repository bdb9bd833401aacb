// Follows a run from the outside: shows what the ranks report, keeps it for readers that come late,
// and writes it under --out.

import { join } from 'node:path';
import { RUN_FILES } from '../files/run-files.js';
import { isSaveOf } from '../files/save-directory.js';
import { checkLines } from '../plan/check-run.js';
import type {
  FinalWeights,
  MembersTold,
  RankCheck,
  RankEvent,
  RankReady,
  RankReport,
  ResumedFrom,
  StepMetrics,
} from '../rank/events.js';
import type { RunConfig } from '../run-config.js';
import { earlyText, type RunEnd } from '../run-end.js';
import { changesOf, membersText } from './elastic-changes.js';
import { finalText } from './final-text.js';
import { headerLines, headerRows, runTitle } from './header.js';
import { reportOfEnded } from './report.js';
import type { RanksTold } from './run-directory.js';
import type { RunHistory } from './run-history.js';
import { RunRecorder, type RunRecorderOptions } from './run-recorder.js';
import type { RunRecord } from './run-records.js';
import { sharedAdapters } from './shared-adapters.js';
import type { Terminal } from './terminal.js';

export class RunMonitor {
  #config: RunConfig;
  readonly #terminal: Terminal;
  readonly #records: RunRecorder;
  #ready: RankReady[] = [];
  #reports: RankReport[] = [];
  #checks: RankCheck[] = [];
  /** How the ranks of an elastic job have changed. */
  readonly #changes: MembersTold[] = [];
  /** Events of rank 0 that came before another rank was ready. */
  #early: RankEvent[] = [];
  #earlyEnd: Extract<RankEvent, { readonly type: 'early' }> | undefined;
  #steps = 0;
  /** The duration of each step of this command. */
  readonly #stepMs: number[] = [];
  #final: FinalWeights | undefined;
  /** Where the model is that is not under --out, and why. */
  #misplaced: string | undefined;

  constructor(config: RunConfig, terminal: Terminal, options: RunRecorderOptions = {}) {
    this.#config = config;
    this.#terminal = terminal;
    this.#records = new RunRecorder(config.out, options);
    this.#recordRun();
  }

  /** The number of steps shown so far. */
  get steps(): number {
    return this.#steps;
  }

  /** What has happened so far. */
  get history(): RunHistory {
    return this.#records.history;
  }

  /** The end before the last step, once rank 0 has told it. */
  get early(): Extract<RankEvent, { readonly type: 'early' }> | undefined {
    return this.#earlyEnd;
  }

  /** The weights that the run leaves, once rank 0 has told it. */
  get final(): FinalWeights | undefined {
    return this.#final;
  }

  /** Why what was trained is not under --out, and where it is, once rank 0 has told it. */
  get misplaced(): string | undefined {
    return this.#misplaced;
  }

  /**
   * To be called before the job starts again after a failure; `config` tells what it goes on from.
   */
  restart(config: RunConfig, reason: string): void {
    const { ranks } = config;
    if (ranks < this.#config.ranks) {
      const told = { epoch: 0, ranks, step: this.#steps, came: 0, left: 0, lost: 1, reasons: [] };
      this.#changes.push(told);
    }
    this.#terminal.close();
    this.#terminal.note(reason);
    this.#records.add({ type: 'warning', text: reason });
    this.#records.close();
    this.#config = config;
    this.#ready = [];
    this.#reports = [];
    this.#checks = [];
    this.#early = [];
    this.#earlyEnd = undefined;
    this.#misplaced = undefined;
    this.#recordRun();
  }

  readonly handle = (event: RankEvent): void => {
    if (!this.#isReady && ['start', 'resumed', 'step'].includes(event.type)) {
      this.#early.push(event);
      return;
    }
    switch (event.type) {
      case 'ready':
        this.#noteReady(event.ready);
        return;
      case 'start':
        this.#records.add({ type: 'start', atMs: Date.now(), ...event.start });
        return;
      case 'resumed':
        this.#goOn(event.from);
        return;
      case 'early':
        this.#earlyEnd = event;
        if (event.why !== 'asked') {
          this.#terminal.note(earlyText(event, this.#config));
        }
        return;
      case 'step':
        this.#steps = event.metrics.step;
        this.#stepMs.push(event.metrics.stepMs);
        if (isKept(event.metrics, this.#config)) {
          this.#records.add(stepRecord(event));
        }
        this.#terminal.step(event.metrics, event.resources);
        return;
      case 'doing':
        this.#terminal.doing(event.what);
        return;
      case 'evaluating':
        this.#terminal.evaluating(event.done, event.total);
        return;
      case 'final':
        this.#final = event.final;
        return;
      case 'compute':
      case 'classes':
        this.#records.add(event);
        return;
      case 'sample': {
        const { prompt, text } = event;
        this.#records.add({ type: 'sample', step: this.#steps, prompt, text });
        this.#terminal.sample(prompt, text);
        return;
      }
      case 'rank':
        this.#records.add({ type: 'rank', ...event.status, atMs: Date.now() });
        return;
      case 'save':
        this.#records.add({ type: 'save', ...event.save, atMs: Date.now() });
        return;
      case 'saveGone':
        this.#records.add({ type: 'saveGone', ...event.save, atMs: Date.now() });
        return;
      case 'warning':
        this.#warn(event.text);
        return;
      case 'misplaced':
        this.#misplaced = event.text;
        return;
      case 'end': {
        const { rank, end, reason } = event;
        this.#records.add({ type: 'rankEnd', rank, end, reason, atMs: Date.now() });
        return;
      }
      case 'members':
        this.#noteMembers(event);
        return;
      case 'report':
        this.#reports[event.report.rank] = event.report;
        return;
      case 'check':
        this.#checks[event.check.rank] = event.check;
    }
  };

  #noteMembers({ type: _, ...told }: { readonly type: 'members' } & MembersTold): void {
    this.#changes.push(told);
    this.#records.add({ type: 'members', ...told, atMs: Date.now() });
    this.#terminal.note(membersText(told));
  }

  #warn(text: string): void {
    if (this.#terminal.warn(text)) {
      this.#records.add({ type: 'warning', text });
    }
  }

  /** To be called when the run has ended; what was written of one that is not done stays. */
  end({ kind, reason }: Pick<RunEnd, 'kind' | 'reason'>): void {
    const isFinished = kind === 'done' || this.#misplaced !== undefined;
    this.#terminal.close();
    const { directory, history } = this.#records;
    for (const rank of history.ranks()) {
      directory?.addEvent(rank);
    }
    const report = directory && join(directory.path, RUN_FILES.report);
    this.#records.add({ type: 'runEnd', end: kind, reason, atMs: Date.now(), report });
    const checks = this.#checks.length > 0 ? this.#checks : undefined;
    if (isFinished && checks !== undefined) {
      for (const line of checkLines(checks, median(this.#stepMs))) {
        this.#terminal.note(line);
      }
    }
    if (directory === undefined) {
      return;
    }
    directory.close();
    directory.leave(RUN_FILES.report, () => reportOfEnded(directory.path, kind));
    if (isFinished) {
      const [ready, reports, final] = [this.#ready, this.#reports, this.#final];
      const elastic = this.#config.elastic ? changesOf(this.#changes) : undefined;
      const end = this.#summaryEnd();
      const told = { ready, reports, checks, final, elastic, end };
      directory.finish(told, runTitle(this.#config));
      if (final !== undefined && this.#misplaced === undefined) {
        this.#terminal.note(finalText(final, this.#config));
      }
      this.#terminal.note(`The run is in ${this.#config.out}.`);
    }
  }

  #summaryEnd(): RanksTold['end'] {
    const { steps, patience } = this.#config;
    const { step, why } = this.#earlyEnd ?? ({ step: steps, why: 'done' } as const);
    const isHere = this.#misplaced === undefined && why !== 'asked';
    return isHere ? { step, steps, why, patience } : undefined;
  }

  #goOn({ step, path, notes }: ResumedFrom): void {
    const isOwn = path !== undefined && isSaveOf(this.#config.out, path);
    this.#openRecords(isOwn ? step : 0);
    for (const note of notes) {
      this.#terminal.note(note);
    }
    const how =
      step === 0
        ? `Beginning with the weights of ${path}.`
        : `Going on from ${path}, behind step ${step}.`;
    this.#terminal.note(path === undefined ? 'There is no save yet: the run starts anew.' : how);
    if (step >= this.#config.steps) {
      this.#terminal.note(
        `All ${this.#config.steps} steps are done: nothing is left to train. Give more --steps to train on.`,
      );
    }
  }

  #openRecords(goesOnAt: number): void {
    this.#records.open(goesOnAt, this.#ready, (text) => this.#warn(text));
  }

  get #isReady(): boolean {
    return Object.keys(this.#ready).length === this.#config.ranks;
  }

  #noteReady(ready: RankReady): void {
    const wasReady = this.#isReady; // a rank that takes a lost one's place is ready later
    this.#ready[ready.rank] = ready;
    const { processBytes, params, data, valid, ...told } = ready;
    this.#records.add({ type: 'ready', ...told });
    if (this.#isReady && !wasReady) {
      this.#start();
    }
  }

  #start(): void {
    if (this.#config.resume === undefined) {
      this.#openRecords(0); // else once it is known what the run goes on from
    }
    this.#records.add({ type: 'header', rows: headerRows(this.#config, this.#ready) });
    this.#terminal.header(headerLines(this.#config, this.#ready));
    for (const text of sharedAdapters(this.#config, this.#ready)) {
      this.#warn(text);
    }
    const early = this.#early;
    this.#early = [];
    for (const event of early) {
      this.handle(event);
    }
  }

  #recordRun(): void {
    const { steps, ranks } = this.#config;
    const title = runTitle(this.#config);
    this.#records.add({ type: 'run', title, steps, ranks, atMs: Date.now() });
  }
}

/** Whether a step has a line in metrics.jsonl: each one, unless --log-every is given. */
export function isKept(
  { step, skipped, validLoss, loss, hash }: StepMetrics,
  { logEvery = 1, steps }: Pick<RunConfig, 'logEvery' | 'steps'>,
): boolean {
  const isToldOf = validLoss !== undefined || hash !== undefined;
  const isLookedFor = step === 1 || step === steps || skipped || isToldOf;
  return isLookedFor || step % logEvery === 0 || !Number.isFinite(loss);
}

function stepRecord({
  metrics,
  resources,
}: Extract<RankEvent, { readonly type: 'step' }>): RunRecord {
  const loss = Number.isFinite(metrics.loss) ? metrics.loss : null;
  return { type: 'step', ...metrics, loss, ...resources, atMs: Date.now() };
}

/**
 * The median without the first step, where there are others: drivers and engines compile in that
 * one.
 */
function median(stepMs: readonly number[]): number {
  const later = stepMs.length > 1 ? stepMs.slice(1) : stepMs;
  return later.toSorted((a, b) => a - b)[Math.floor(later.length / 2)] ?? Number.NaN;
}
