// A run as the page knows it: what its records add up to.

import type { EventRecord, StepLine } from '../output/run-records.js';
import type { RankEndKind } from '../rank/events.js';
import type { PageRun } from './page-data.js';
import { type PageRecord, unpackSteps } from './step-table.js';

type Of<Type extends EventRecord['type']> = Extract<EventRecord, { readonly type: Type }>;

export type RankState = 'starting' | 'ready' | 'training' | RankEndKind;

export interface RankModel {
  readonly rank: number;
  state: RankState;
  reason?: string | undefined;
  ready?: Of<'ready'>;
  /** Its last status of a step. */
  status?: Of<'rank'>;
  /** The time when it was last heard of, in ms since the Unix epoch. */
  heardMs?: number;
}

/** What tells a run's names apart from those of others, where there are several. */
export function prefixOf({ name }: RunModel, { length }: readonly RunModel[]): string {
  return length > 1 ? `${name} ` : '';
}

export type RunState = 'starting' | 'training' | Of<'runEnd'>['end'];

export class RunModel {
  readonly name: string;
  title = '';
  plannedSteps = 0;
  startedMs: number | undefined;
  end: Of<'runEnd'> | undefined;
  header: Of<'header'>['rows'] = [];
  /** The lines in order; a step that is run again after a resume replaces the earlier one. */
  readonly lines: StepLine[] = [];
  readonly ranks: RankModel[] = [];
  readonly samples: Of<'sample'>[] = [];
  compute: Of<'compute'> | undefined;
  /** A classifier's classes, as the last evaluation found them. */
  classes: Of<'classes'> | undefined;
  readonly saves: Of<'save'>[] = [];
  readonly warnings: string[] = [];
  /** Whether records may still come; undefined where nobody has told. */
  isLive: boolean | undefined;
  /** How it is known that nobody is at work on it, where that is a guess. */
  sign: string | undefined;
  /** The number of steps of which `lines` are some; undefined where they are all. */
  thinnedFrom: number | undefined;
  /** Grows with each change, so that a view knows whether it is up to date. */
  version = 0;

  constructor(name: string) {
    this.name = name;
  }

  static of({ name, records, isLive, sign }: PageRun): RunModel {
    const run = new RunModel(name);
    run.isLive = isLive;
    run.sign = sign;
    for (const record of records) {
      run.add(record);
    }
    return run;
  }

  get state(): RunState {
    return this.end?.end ?? (this.lines.length > 0 ? 'training' : 'starting');
  }

  get last(): StepLine | undefined {
    return this.lines.at(-1);
  }

  add(record: PageRecord): void {
    this.version++;
    switch (record.type) {
      case 'steps':
        this.thinnedFrom = record.of ?? this.thinnedFrom;
        for (const line of unpackSteps(record)) {
          this.#step(line);
        }
        return;
      case 'step':
        this.#step(record);
        return;
      case 'run':
        this.#begin(record);
        return;
      case 'header':
        this.header = record.rows;
        return;
      case 'sample':
        this.samples.push(record);
        return;
      case 'compute':
        this.compute = record;
        return;
      case 'classes':
        this.classes = record;
        return;
      case 'save':
        this.#save(record);
        return;
      case 'saveGone':
        this.saves.splice(
          0,
          Infinity,
          ...this.saves.filter((save) => save.directory !== record.directory),
        );
        return;
      case 'warning':
        this.warnings.push(record.text);
        return;
      case 'runEnd':
        this.end = record;
        return;
      default:
        this.#rank(record);
    }
  }

  #begin(record: Of<'run'>): void {
    this.title = record.title;
    this.plannedSteps = record.steps;
    this.startedMs ??= record.atMs;
    this.end = undefined;
    this.ranks.length = 0;
    for (let rank = 0; rank < record.ranks; rank++) {
      this.#rankOf(rank);
    }
  }

  #step(line: StepLine): void {
    while (this.lines.length > 0 && this.lines.at(-1)!.step >= line.step) {
      this.lines.pop();
    }
    this.lines.push(line);
  }

  /** Notes a save; one that is written again replaces the earlier one. */
  #save(save: Of<'save'>): void {
    const at = this.saves.findIndex(({ directory }) => directory === save.directory);
    this.saves.splice(at < 0 ? this.saves.length : at, at < 0 ? 0 : 1, save);
  }

  #rank(record: Of<'ready' | 'rank' | 'rankEnd'>): void {
    const rank = this.#rankOf(record.rank);
    switch (record.type) {
      case 'ready':
        rank.ready = record;
        rank.state = 'ready';
        rank.reason = undefined;
        return;
      case 'rank':
        rank.status = record;
        rank.heardMs = Math.max(rank.heardMs ?? 0, record.atMs);
        if (rank.state === 'ready' || rank.state === 'starting') {
          rank.state = 'training';
        }
        return;
      case 'rankEnd':
        rank.state = record.end;
        rank.reason = record.reason;
        rank.heardMs = record.atMs;
    }
  }

  #rankOf(rank: number): RankModel {
    while (this.ranks.length <= rank) {
      this.ranks.push({ rank: this.ranks.length, state: 'starting' });
    }
    return this.ranks[rank]!;
  }
}
