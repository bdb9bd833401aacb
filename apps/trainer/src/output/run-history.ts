// What a reader that comes late has to be told of a run, bounded however long the run is.

import { type PageRecord, packSteps } from '../page/run/step-table.js';
import { MOST_LINES, ThinnedSteps } from '../page/run/thin-steps.js';
import type { EventRecord, RunRecord } from './run-records.js';

type RankRecord = Extract<RunRecord, { readonly type: 'rank' }>;

/** The most samples, and the most warnings, that a run keeps which goes on for weeks. */
const MOST_TEXTS = 500;

/** Records of a type that are kept evenly spread: each `stride`th one, and the newest. */
interface Spread {
  seen: number;
  stride: number;
}

/**
 * The records of a run: of each rank its last status, of saves those that are there, of samples and
 * the like every other one where there are very many, and of steps what shows all of them; see
 * thinSteps.
 */
export class RunHistory {
  readonly #steps: ThinnedSteps;
  /** The records in order, by what a later one replaces. */
  readonly #events = new Map<string, EventRecord>();
  readonly #spreads = new Map<string, Spread>();
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
      case 'start':
        return; // it is for those who compute steps again, and no page shows it
      case 'saveGone':
        this.#events.delete(keyOfSave(record));
        return;
    }
    const key = this.#keyOf(record);
    this.#events.delete(key); // the later one stands where it came
    this.#events.set(key, record);
    const spread = this.#spreads.get(record.type);
    if (spread !== undefined && spread.seen / spread.stride > MOST_TEXTS) {
      this.#widen(record, spread);
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
        this.#events.delete(key);
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
      case 'sample':
      case 'warning':
        return this.#keyOfText(record);
      default:
        return `${this.#added++}`;
    }
  }

  /** The key of one of many: that of the newest one, unless its number is one that stays. */
  #keyOfText({ type }: EventRecord): string {
    const spread = this.#spreads.get(type) ?? { seen: 0, stride: 1 };
    this.#spreads.set(type, spread);
    const number = spread.seen++;
    return `${type} ${number % spread.stride === 0 ? number : 'newest'}`;
  }

  /** Keeps every other one of a type's records, beside the newest. */
  #widen(newest: EventRecord, spread: Spread): void {
    spread.stride *= 2;
    for (const [key, record] of this.#events) {
      const isKept = Number(key.split(' ')[1]) % spread.stride === 0;
      if (record.type === newest.type && record !== newest && !isKept) {
        this.#events.delete(key);
      }
    }
  }

  #forgetRanks(): void {
    for (const { rank } of this.ranks()) {
      this.#events.delete(`rank ${rank}`);
    }
  }
}

function keyOfSave({ directory }: { readonly directory: string }): string {
  return `save ${directory}`;
}
