// Writes a model directory as a save: its weights in checked pieces, at step 0, for whatever loads
// saves. A run may begin with one. It has no optimizer state and says nothing about data.

import { type HeldPiece, type PieceStore, writeSave } from '@shardweave/checkpoint';
import { type LazyTensor, StateDictError } from '@shardweave/nn';
import type { RunConfig } from '../run-config.js';
import { extraOf, type SavedRun } from './saved-run.js';
import { parameterShapes } from './saved-state.js';

/** A parameter in its file, in a dtype that devices compute with. */
type Weight = LazyTensor<'f32' | 'f16' | 'bf16'>;

/** A model, which is a language model unless it has another head. */
type ModelOfSave = Pick<RunConfig, 'model' | 'modelConfig'> & Partial<Pick<RunConfig, 'head'>>;

/**
 * Writes the parameters in `state` in the dtype of their files, by ranges where the files can be
 * read so.
 * @throws {StateDictError} where a parameter of the model is missing, or belongs to another model
 */
export async function writeModelSave(
  store: PieceStore,
  state: ReadonlyMap<string, LazyTensor>,
  options: {
    readonly config: ModelOfSave & Pick<RunConfig, 'tokenizer'>;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { config, signal } = options;
  const weights = await weightsOf(state, config);
  const pieces = async function* () {
    for (const [name, weight] of weights) {
      signal.throwIfAborted();
      yield pieceOf(name, weight);
    }
  };
  const run: SavedRun = { step: 0, updates: 0, numericClasses: [], config };
  await writeSave(store, { pieces: pieces(), record: () => ({ extra: extraOf(run) }) });
}

/**
 * The parameters of a model in a state, which may hold others, too.
 * @throws {StateDictError} where one is missing, or belongs to another model
 */
export async function weightsOf(
  state: ReadonlyMap<string, LazyTensor>,
  { head = { kind: 'lm' }, ...config }: ModelOfSave,
): Promise<readonly (readonly [string, Weight])[]> {
  const choice = { ...config, head, lora: undefined, precision: 'fp32', seed: 0 } as const;
  const shapes = await parameterShapes(choice);
  return shapes.map(([name, shape]) => [name, weightOf(state, name, shape)]);
}

function weightOf(
  state: ReadonlyMap<string, LazyTensor>,
  name: string,
  shape: readonly number[],
): Weight {
  const found = state.get(name);
  const isFloat = ['f32', 'f16', 'bf16'].includes(found?.dtype ?? '');
  if (!isFloat || found!.shape.join() !== shape.join()) {
    const got = found === undefined ? 'none' : `${found.dtype} [${found.shape.join(', ')}]`;
    throw new StateDictError(
      `expected '${name}' of f32, f16 or bf16 [${shape.join(', ')}], got ${got}.`,
      found === undefined ? { missing: [name] } : { mismatched: [name] },
    );
  }
  return found as Weight;
}

function pieceOf(name: string, weight: Weight): HeldPiece {
  const { dtype, shape } = weight;
  const elementBytes = dtype === 'f32' ? 4 : 2;
  let whole: Promise<Uint8Array> | undefined; // for a file that is not read by ranges
  const read = async (start: number, end: number) => {
    if (weight.readPart !== undefined) {
      return weight.readPart({ first: start, count: end - start });
    }
    whole ??= weight.read();
    return (await whole).subarray(start * elementBytes, end * elementBytes);
  };
  const size = shape.reduce((product, dim) => product * dim, 1);
  return { kind: 'parameter', name, dtype, shape, start: 0, end: size, read };
}
