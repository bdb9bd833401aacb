// What a reader that comes late has to be told of a run, bounded however long the run is.

import { type PageRecord, packSteps } from '../page/step-table.js';
import { MOST_LINES, ThinnedSteps } from '../page/thin-steps.js';
import type { EventRecord, RunRecord } from './run-records.js';

type RankRecord = Extract<RunRecord, { readonly type: 'rank' }>;

/** Of each type of record, a run that goes on for weeks keeps at most so many. */
const MOST_EVENTS = 500;
/** The types whose records come again and again, and each tell something of their own. */
const MANY = ['sample', 'warning', 'save'] as const satisfies EventRecord['type'][];

/**
 * The records of a run: of each rank its last status, of saves those that are there, of samples and
 * the like every other one where there are very many, and of steps what shows all of them; see
 * thinSteps.
 */
export class RunHistory {
  readonly #steps: ThinnedSteps;
  /** The records in order, by what a later one replaces. */
  readonly #events = new Map<string, EventRecord>();
  readonly #counts = new Map<string, number>();
  #added = 0;

  /** @param most the most lines of steps */
  constructor(most = MOST_LINES) {
    this.#steps = new ThinnedSteps(most);
  }

  add(record: RunRecord): void {
    switch (record.type) {
      case 'step': {
        const { type: _, ...line } = record;
        this.#steps.add(line);
        return;
      }
      case 'run':
        this.#forgetRanks();
        break;
      case 'saveGone':
        this.#delete(keyOfSave(record));
        return;
    }
    const key = this.#keyOf(record);
    this.#delete(key); // the later one stands where it came
    this.#events.set(key, record);
    const count = (this.#counts.get(record.type) ?? 0) + 1;
    this.#counts.set(record.type, count);
    if (count > MOST_EVENTS && (MANY as readonly string[]).includes(record.type)) {
      this.#halve(record.type);
    }
  }

  /**
   * For a run that goes on after a step: its steps are told again, and records of later ones are
   * dropped.
   */
  forgetSteps(goesOnAt: number): void {
    this.#steps.clear();
    for (const [key, record] of this.#events) {
      if ('step' in record && record.step > goesOnAt) {
        this.#delete(key);
      }
    }
    this.#forgetRanks();
  }

  /** All that is kept, with the steps in one table at the front. */
  records(): PageRecord[] {
    const { lines, numSteps } = this.#steps;
    return packSteps([...this.#events.values()], lines, numSteps);
  }

  /** The last status of each rank. */
  ranks(): readonly RankRecord[] {
    return [...this.#events.values()].filter((record) => record.type === 'rank');
  }

  #keyOf(record: EventRecord): string {
    switch (record.type) {
      case 'rank':
        return `rank ${record.rank}`;
      case 'save':
        return keyOfSave(record);
      case 'classes':
        return record.type;
      default:
        return `${this.#added++}`;
    }
  }

  #delete(key: string): void {
    const record = this.#events.get(key);
    if (record !== undefined) {
      this.#events.delete(key);
      this.#counts.set(record.type, this.#counts.get(record.type)! - 1);
    }
  }

  #forgetRanks(): void {
    for (const { rank } of this.ranks()) {
      this.#delete(`rank ${rank}`);
    }
  }

  /** Drops every other record of a type, and so the more of them the older they are. */
  #halve(type: EventRecord['type']): void {
    const keys = [...this.#events].flatMap(([key, record]) => (record.type === type ? key : []));
    for (const [i, key] of keys.entries()) {
      if (i % 2 === 0) {
        this.#delete(key);
      }
    }
  }
}

function keyOfSave({ directory }: { readonly directory: string }): string {
  return `save ${directory}`;
}
