// What an evaluation tells of a task beside its loss, as plain data.

/** A class of a classifier. */
export interface ClassFigures {
  readonly label: string;
  /** The part of the texts given the label that has it; 0 where none is given it. */
  readonly precision: number;
  /** The part of the texts that have the label that is given it; 0 where none has it. */
  readonly recall: number;
  /** The harmonic mean of both; 0 where they are. */
  readonly f1: number;
  /** The texts that have the label. */
  readonly support: number;
}

export interface Figures {
  /** Figures by their names, such as accuracy or ndcg@10, in the order in which they are shown. */
  readonly values: Readonly<Record<string, number>>;
  /** The different texts that an embedder was asked to find, and among how many. */
  readonly compared?: { readonly queries: number; readonly documents: number } | undefined;
  /** A classifier's, in the order of its labels. */
  readonly classes?: readonly ClassFigures[] | undefined;
  /** With one label a text: the texts by their label (rows) and the one that they were given. */
  readonly confusion?: readonly (readonly number[])[] | undefined;
}

/** What a model has said of an example's texts, and what the data say. */
export interface Judged {
  /** A classifier's logits of each text, f32 [texts, labels]. */
  readonly logits: Float32Array;
  /** The labels of the example, as TaskExample has them. */
  readonly labels: readonly number[];
}

/** Called with each example of a batch, and its place in that batch. */
export type OnJudged = (judged: Judged, index: number) => void;
