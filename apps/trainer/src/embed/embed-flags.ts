// The flags of the command `embed`: an interface that others script against.

import { UsageError } from '../errors.js';
import { flag, type ValuesOf } from '../flags/flag.js';
import { data, file, onOff, positive, text, whole } from '../flags/flag-kinds.js';
import { MODEL, PLACE } from '../generate/generate-flags.js';

/** The field of a line that is embedded where no other one is named. */
export const DEFAULT_FIELD = 'text';
export const DEFAULT_NEGATIVES = 5;
/** 0.95 leaves out what is nearly as similar as an answer (Moreira et al., 2024: NV-Retriever). */
export const DEFAULT_MARGIN = 0.95;

export const EMBED = {
  ...MODEL,
  data: flag(data, undefined, [
    '--data <FILE|DIR|hf:ORG/NAME,...>',
    'a text a line, or a line of JSON or a row of Parquet, CSV or TSV each (default: standard input, of texts or JSON lines)',
  ]),
  field: flag(text, undefined, [
    '--field <NAME>',
    `the field with the text, or its other names in data of train; a list makes a vector of each. A line's fields are kept beside its vector (default: ${DEFAULT_FIELD})`,
  ]),
  prompt: flag(text, undefined, [
    '--prompt <NAME|TEXT>',
    "what is put before each text: the name of one of the model's prompts, such as query, or a text",
  ]),
  dimensions: flag(whole(1), undefined, [
    '--dimensions <N>',
    'keep the first N numbers alone, for models that are trained so (Matryoshka)',
  ]),
  out: flag(file, undefined, [
    '--out <FILE.npy|FILE.jsonl>',
    'NumPy array in float32, [texts, dimensions], or JSON lines (default: JSON lines on standard output)',
  ]),
  mineNegatives: flag(file, undefined, [
    '--mine-negatives <FILE|hf:ORG/NAME>',
    'pairs as train --task embed takes them; writes them with "negatives": documents of other pairs that are most similar to the query',
  ]),
  negatives: flag(whole(1), undefined, [
    '--negatives <N>',
    `at most so many for each query (default: ${DEFAULT_NEGATIVES})`,
  ]),
  margin: flag(positive, undefined, [
    '--margin <X>',
    `none is more similar to the query than X times its answer, for it may be one (default: ${DEFAULT_MARGIN})`,
  ]),
  seq: flag(whole(1), undefined, [
    '--seq <T>',
    "tokens behind which a text is cut (default: what the model's files say, or its positions)",
  ]),
  chunkSize: flag(whole(1), 64, ['--chunk-size <N>', 'texts at once']),
  ...PLACE,
  quiet: flag(onOff, false, ['--quiet', 'print nothing but vectors and errors']),
};

export type EmbedFlags = ValuesOf<typeof EMBED>;

/** The name of an --out, by which its format is told. */
const OUT = /\.(npy|jsonl)$/;

/** @throws {UsageError} where a flag has nothing to say beside the others */
export function checkTogether(flags: EmbedFlags): void {
  const { mineNegatives, data, field, prompt, negatives, margin, out } = flags;
  const isMining = mineNegatives !== undefined;
  const idle = Object.entries(isMining ? { data, field, prompt } : { negatives, margin }).find(
    ([, value]) => value !== undefined,
  )?.[0];
  if (idle !== undefined) {
    throw new UsageError(
      isMining
        ? `--${idle}: --mine-negatives reads pairs, and puts the model's own prompts before them. Leave --${idle} out.`
        : `--${idle}: it is about --mine-negatives, which is not given. Add that, or leave --${idle} out.`,
    );
  }
  const isKnown = out === undefined || (isMining ? out.endsWith('.jsonl') : OUT.test(out));
  if (!isKnown) {
    const ends = isMining ? '.jsonl' : '.npy or .jsonl, which is its format';
    throw new UsageError(`--out: expected a name that ends with ${ends}, got ${out}. Rename it.`);
  }
}
