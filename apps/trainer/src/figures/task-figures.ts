// Collects what a model says of examples that are evaluated, over all ranks, and makes figures of
// it: the same ones on each rank, whatever the number of ranks is.

import type { ProcessGroup } from '@shardweave/collectives';
import type { TrainedHead } from '../task/task-head.js';
import { confusionFigures, severalFigures } from './class-figures.js';
import type { Figures, Judged } from './figures.js';
import { placesOf, rankingFigures } from './ranking-figures.js';

/** Where a judged example is among those that are evaluated, from 0. */
type Add = (judged: Judged, place: number) => void;

export interface Scoreboard {
  readonly add: Add;
  /** Collective. */
  figures(group: ProcessGroup): Promise<Figures>;
}

/**
 * The board of a task; undefined where nothing is judged beside the loss, or all at once.
 * @param count the number of all examples
 */
export function scoreboardOf(head: TrainedHead, count: number): Scoreboard | undefined {
  switch (head.kind) {
    case 'lm':
    case 'module':
    case 'embed':
      return undefined;
    case 'dpo':
    case 'orpo':
      return new Preferences(count);
    case 'rerank':
      return new Ranks(count);
    case 'classify':
      return head.problemType === 'single_label_classification'
        ? new Labels(head.labels)
        : new SeveralLabels(head.labels);
  }
}

/** One label a text: the likeliest one is given, and none where a logit is NaN. */
class Labels implements Scoreboard {
  readonly #labels: readonly string[];
  /** [labels, labels + 1]: the last column counts texts that are given none. */
  readonly #counts: Float32Array<ArrayBuffer>;

  constructor(labels: readonly string[]) {
    this.#labels = labels;
    this.#counts = new Float32Array(labels.length * (labels.length + 1));
  }

  readonly add: Add = ({ logits, labels }) => {
    const { length } = this.#labels;
    const given = logits.indexOf(logits.reduce((most, logit) => Math.max(most, logit)));
    this.#counts[labels[0]! * (length + 1) + (given < 0 ? length : given)]!++;
  };

  async figures(group: ProcessGroup): Promise<Figures> {
    return confusionFigures(this.#labels, await summed(this.#counts, group));
  }
}

/** Several labels at once: each is given that is likelier than not. */
class SeveralLabels implements Scoreboard {
  readonly #labels: readonly string[];
  /** Three counts for each label, then the texts, and those with all labels right. */
  readonly #counts: Float32Array<ArrayBuffer>;

  constructor(labels: readonly string[]) {
    this.#labels = labels;
    this.#counts = new Float32Array(3 * labels.length + 2);
  }

  readonly add: Add = ({ logits, labels }) => {
    let isExact = true;
    for (const [i, logit] of logits.entries()) {
      const [given, had] = [Number(logit > 0), Number(labels.includes(i))];
      this.#counts[3 * i]! += given * had;
      this.#counts[3 * i + 1]! += given;
      this.#counts[3 * i + 2]! += had;
      isExact &&= given === had && !Number.isNaN(logit);
    }
    const texts = 3 * this.#labels.length;
    this.#counts[texts]!++;
    this.#counts[texts + 1]! += Number(isExact);
  };

  async figures(group: ProcessGroup): Promise<Figures> {
    const all = await summed(this.#counts, group);
    const [texts, exact] = all.subarray(-2);
    return severalFigures(this.#labels, { counts: all, texts: texts!, exact: exact! });
  }
}

/** By how much the chosen answer of each pair is preferred; the model is right above 0. */
class Preferences implements Scoreboard {
  /** 0 for what another rank has. */
  readonly #margins: Float32Array<ArrayBuffer>;

  constructor(count: number) {
    this.#margins = new Float32Array(count);
  }

  readonly add: Add = ({ logits }, place) => {
    this.#margins[place] = logits[0]!;
  };

  async figures(group: ProcessGroup): Promise<Figures> {
    const margins = await summed(this.#margins, group);
    const mean = (of: (margin: number) => number) =>
      margins.reduce((sum, margin) => sum + of(margin), 0) / margins.length;
    return {
      values: {
        accuracy: mean((margin) => Number(margin > 0)), // NaN is wrong
        margin: mean((margin) => margin),
      },
    };
  }
}

/** The place of each query's document, or how likely a pair with a score belongs together. */
class Ranks implements Scoreboard {
  /** 0 for what another rank has. */
  readonly #places: Float32Array<ArrayBuffer>;
  /** Pairs that stand alone: all of them, and those of which the model is right. */
  readonly #pairs = new Float32Array(2);

  constructor(count: number) {
    this.#places = new Float32Array(count);
  }

  readonly add: Add = ({ logits, labels }, place) => {
    if (labels.length === 1) {
      this.#pairs[0]!++;
      const isRight = labels[0]! > 0.5 ? logits[0]! > 0 : logits[0]! <= 0; // NaN is wrong
      this.#pairs[1]! += Number(isRight);
    } else {
      this.#places[place] = placesOf(logits, [0])[0]!;
    }
  };

  async figures(group: ProcessGroup): Promise<Figures> {
    const [pairs, right] = await summed(this.#pairs, group);
    const places = await summed(this.#places, group);
    const ranked = [...places].filter((place) => place > 0);
    return {
      values: {
        ...(ranked.length > 0 && rankingFigures(ranked.map((place) => [place])).values),
        ...(pairs! > 0 && { accuracy: right! / pairs! }),
      },
    };
  }
}

/**
 * The sum of the ranks' values, exact where they are counts, and where at most one rank has another
 * value than 0. Collective.
 */
export async function summed(
  values: Float32Array<ArrayBuffer>,
  group: ProcessGroup,
): Promise<Float32Array<ArrayBuffer>> {
  if (group.worldSize > 1) {
    const bytes = new Uint8Array(values.buffer);
    await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', tag: 'figures' });
  }
  return values;
}
