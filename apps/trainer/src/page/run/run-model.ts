// A run as the page knows it: what its records add up to.

import type { EventRecord, StepLine } from '../../output/run-records.js';
import type { RankEndKind } from '../../rank/events.js';
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

/** 'killed': its records have no end, and nothing writes more of them. */
export type RunState = 'starting' | 'training' | 'killed' | Of<'runEnd'>['end'];

export class RunModel {
  readonly name: string;
  /** Whether more records may come. */
  isLive: boolean;
  /** How it is known that nobody is at work on it, where that is a guess. */
  sign: string | undefined;
  /** The number of steps of which `lines` are some; undefined where they are all. */
  thinnedFrom: number | undefined;
  title = '';
  plannedSteps = 0;
  /** When each command began or went on with it, in ms since the Unix epoch. */
  readonly beginnings: number[] = [];
  end: Of<'runEnd'> | undefined;
  header: Of<'header'>['rows'] = [];
  /** The lines in order; a step that is run again after a resume replaces the earlier one. */
  readonly lines: StepLine[] = [];
  readonly ranks: RankModel[] = [];
  readonly samples: Of<'sample'>[] = [];
  /** A classifier's classes, as the last evaluation found them. */
  classes: Of<'classes'> | undefined;
  /** Those that are there. */
  readonly saves: Of<'save'>[] = [];
  readonly warnings: string[] = [];
  /** How the ranks of an elastic job have changed. */
  readonly changes: Of<'members'>[] = [];
  compute: Of<'compute'> | undefined;
  /** The layer groups whose figures steps have told, in the order of the model. */
  readonly groups = new Set<string>();
  /** When its last record was written, in ms since the Unix epoch. */
  lastMs: number | undefined;
  /** Grows with each record besides steps and the status of ranks. */
  notesVersion = 0;

  constructor(name: string, { isLive = true }: { readonly isLive?: boolean } = {}) {
    this.name = name;
    this.isLive = isLive;
  }

  get state(): RunState {
    const open = this.isLive ? (this.lines.length > 0 ? 'training' : 'starting') : 'killed';
    return this.end?.end ?? open;
  }

  get startedMs(): number | undefined {
    return this.beginnings[0];
  }

  /** The step whose loss was not finite, which JSON has as null although targets counted. */
  get divergedAt(): number | undefined {
    const { last } = this;
    return last?.loss === null && last.targets > 0 && !last.skipped ? last.step : undefined;
  }

  get last(): StepLine | undefined {
    return this.lines.at(-1);
  }

  add(record: PageRecord): void {
    if ('atMs' in record && record.atMs !== undefined) {
      this.lastMs = Math.max(this.lastMs ?? 0, record.atMs);
    }
    if (record.type !== 'step' && record.type !== 'rank') {
      this.notesVersion++;
    }
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
      case 'classes':
        this.classes = record;
        return;
      case 'save':
        noteSave(this.saves, record);
        return;
      case 'saveGone':
        dropSave(this.saves, record.directory);
        return;
      case 'compute':
        this.compute = record;
        return;
      case 'warning':
        this.warnings.push(record.text);
        return;
      case 'members':
        this.changes.push(record);
        return;
      case 'start':
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
    this.beginnings.push(record.atMs);
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
    this.lastMs = Math.max(this.lastMs ?? 0, line.atMs);
    for (const name of Object.keys(line.groups ?? {})) {
      this.groups.add(name);
    }
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

/** A run with all that is told of it. */
export function runOf({ name, records, isLive, sign }: PageRun): RunModel {
  const run = new RunModel(name, isLive === undefined ? {} : { isLive });
  run.sign = sign;
  for (const record of records) {
    run.add(record);
  }
  return run;
}

/** Notes a save; one that is written again replaces the earlier one. */
function noteSave(saves: Of<'save'>[], save: Of<'save'>): void {
  const at = saves.findIndex(({ directory }) => directory === save.directory);
  saves.splice(at < 0 ? saves.length : at, at < 0 ? 0 : 1, save);
}

function dropSave(saves: Of<'save'>[], gone: string): void {
  const at = saves.findIndex(({ directory }) => directory === gone);
  saves.splice(at < 0 ? saves.length : at, 1);
}
