// Puts the frozen matrices of a model into ggml's blocks of 4 to 8 bits (Dettmers et al., "QLoRA",
// 2023, with the blocks of GGUF files).

import {
  BLOCK_SIZES,
  BLOCK_TYPES,
  BlockNumberError,
  type BlockType,
} from '@shardweave/dtypes/blocks';
import type { Shape, Tensor } from '@shardweave/tensor-core';
import { checkOptions, FUNCTION, oneOf, optional } from './check-options.js';
import { NnConfigError } from './errors.js';
import { Conv1D } from './layers/conv1d.js';
import { Embedding } from './layers/embedding.js';
import { Linear } from './layers/linear.js';
import { LanguageHead } from './models/language-head.js';
import type { Module } from './module.js';
import { recipeOf } from './parameters/deferred-parameter.js';
import { encodedWords } from './parameters/encoded-parameter.js';
import { joinPath } from './parameters/join-path.js';

/** Options of quantizeBase: the type of blocks, and which matrices get which. */
export interface QuantizeBaseOptions {
  /** The type of the weights of linear layers. */
  readonly type: BlockType;
  /**
   * The type of token tables and heads, of which each number is used more often. Default: `type`
   * where it has 6 bits or more, otherwise q8_0.
   */
  readonly tables?: BlockType;
  /**
   * The type of one matrix [rows, width], undefined for one that stays as it is. `usual` is what it
   * would get, which is undefined where its rows are not whole blocks of any type.
   */
  readonly select?: (
    path: string,
    matrix: { readonly shape: Shape; readonly usual: BlockType | undefined },
  ) => BlockType | undefined;
}

/** The types with less than 6 bits, whose tables are kept in more. */
const NARROW: ReadonlySet<BlockType> = new Set(['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q4_K', 'q5_K']);

/** What ggml's users get for rows that are no multiples of 256: one bit more, in blocks of 32. */
const SHORTER: Readonly<Partial<Record<BlockType, BlockType>>> = {
  q4_K: 'q5_0',
  q5_K: 'q5_1',
  q6_K: 'q8_0',
};

/**
 * Makes the frozen weights of linear layers, token tables and heads rest in blocks, which ops
 * decode as they use them: on a device, in shards, stores and gathers they take 4.5 to 8.5 bits a
 * number. Norms, biases and what is trained stay as they are. Call it after applyLora and before
 * the model is packed, sharded or offloaded. Values that are there are encoded at once, others when
 * they are made or loaded; a state dict has the words of blocks (u32), and loadStateDict takes
 * those or floats, which it encodes.
 * @returns the type of each matrix in blocks, by path
 * @throws {NnConfigError} for unknown types, for a model without a frozen matrix, for a selected
 * one whose rows are not whole blocks, for parameters that are packed, sharded or offloaded, and
 * for numbers that the type can't hold
 */
export async function quantizeBase(
  model: Module,
  options: QuantizeBaseOptions,
): Promise<Map<string, BlockType>> {
  checkOptions<QuantizeBaseOptions>('quantizeBase', options, {
    type: oneOf(...BLOCK_TYPES),
    tables: optional(oneOf(...BLOCK_TYPES)),
    select: optional(FUNCTION),
  });
  const chosen = choose(model, options);
  for (const choice of chosen) {
    await putIntoBlocks(choice).catch((cause: unknown) => {
      throw explain(cause, choice);
    });
  }
  return new Map(chosen.map(({ path, type }) => [path, type]));
}

interface Choice {
  readonly path: string;
  readonly tensor: Tensor;
  readonly type: BlockType;
}

function choose(model: Module, { type, tables, select }: QuantizeBaseOptions): Choice[] {
  const ofTables = tables ?? (NARROW.has(type) ? 'q8_0' : type);
  const matrices = frozenMatrices(model);
  if (matrices.size === 0) {
    throw new NnConfigError(
      'quantizeBase: expected a model with frozen weights of linear layers, got none. Blocks are not trained: call applyLora first, or set requiresGrad to false.',
    );
  }
  return [...matrices].flatMap(([tensor, { path, isTable }]) => {
    if (tensor.piece !== undefined) {
      throw new NnConfigError(
        `quantizeBase: expected plain parameters, got '${path}', which is packed, sharded or offloaded. Quantize first.`,
      );
    }
    const { shape } = tensor;
    const usual = fitting(isTable ? ofTables : type, shape);
    const chosen = select === undefined ? usual : select(path, { shape, usual });
    if (chosen === undefined) {
      return [];
    }
    if (!BLOCK_TYPES.includes(chosen) || fitting(chosen, shape) !== chosen) {
      const { elements } = BLOCK_SIZES[chosen] ?? { elements: 32 };
      throw new NnConfigError(
        `quantizeBase: expected select to choose a type whose blocks fill rows of '${path}' [${shape.join(', ')}], got ${String(chosen)}, of blocks of ${elements}.`,
      );
    }
    return [{ path, tensor, type: chosen }];
  });
}

/** The type, or one of shorter blocks where rows do not fill those of 256. */
function fitting(type: BlockType, shape: Shape): BlockType | undefined {
  const fits = (wanted: BlockType) => shape.at(-1)! % BLOCK_SIZES[wanted].elements === 0;
  return [type, SHORTER[type]].find((wanted) => wanted !== undefined && fits(wanted));
}

/** The frozen matrices that ops can read in blocks, under their first paths. */
function frozenMatrices(model: Module): Map<Tensor, { path: string; isTable: boolean }> {
  const found = new Map<Tensor, { path: string; isTable: boolean }>();
  for (const [path, module] of model.namedModules()) {
    const isTable = module instanceof Embedding || module instanceof LanguageHead;
    if (!isTable && !(module instanceof Linear || module instanceof Conv1D)) {
      continue;
    }
    for (const [name, tensor] of module.ownParameters()) {
      if (tensor === module.weight && !tensor.requiresGrad && tensor.size > 0) {
        const before = found.get(tensor);
        found.set(tensor, before ?? { path: joinPath(path, name), isTable });
      }
    }
  }
  return found;
}

/** Names the matrix that has a number which its type can't hold. */
function explain(cause: unknown, { path, type }: Choice): unknown {
  return cause instanceof BlockNumberError
    ? new NnConfigError(
        `quantizeBase: expected numbers below ${cause.below} in '${path}', as ${type} holds them, got ${cause.found}. Mend the weights, or leave that one out by select.`,
        { cause },
      )
    : cause;
}

async function putIntoBlocks({ tensor, type }: Choice): Promise<void> {
  const { device, storage: before, size } = tensor;
  const dtype = tensor.dtype as 'f32' | 'f16' | 'bf16';
  const { elements, bytes } = BLOCK_SIZES[type];
  const count = Math.ceil(((size / elements) * bytes) / 4);
  const storage = device.storage(count, 'u32', before.tag);
  if (recipeOf(tensor) !== undefined) {
    storage.absentHint = before.absentHint;
  } else {
    const numbers = (await tensor.toArray()) as Float32Array;
    const blocks = { size, blocks: { type } };
    const words = await encodedWords(blocks, { start: 0, length: count }, async (first, length) =>
      numbers.subarray(first, first + length),
    );
    storage.fill();
    storage.write(words);
  }
  tensor.rebind(storage, 0, { type, dtype });
  before.release();
}
