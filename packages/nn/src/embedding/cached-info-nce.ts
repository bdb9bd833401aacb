// infoNce over a batch of any size in the memory of one chunk (GradCache; Gao et al., 2021). The
// loss needs all embeddings at once, but the model's activations only where gradients flow through
// them: so documents are embedded without a graph, the loss gives the embeddings' gradients, and
// each chunk is then run again and goes backward from its own.

import { cat, type Device, type RandomState, slice, type Tensor } from '@shardweave/tensor-core';
import {
  above,
  checkNames,
  checkOptions,
  FLAG,
  type OptionRule,
  optional,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { clearGradients } from '../flat/clear-gradients.js';
import type { Module } from '../module.js';
import type { Document } from './document-rows.js';
import { type EmbeddingArgs, embedDocuments } from './embedding-model.js';
import { CONTRASTIVE_RULES, type ContrastiveOptions, infoNce } from './info-nce.js';

/** A batch of token ids. Document i is the own one of query i. */
export interface ContrastiveBatch {
  readonly queries: readonly Document[];
  readonly documents: readonly Document[];
  /** Hard negatives, any number: negatives of every query. */
  readonly negatives?: readonly Document[] | undefined;
}

/** Options of cachedInfoNce: those of the loss, and how the batch is cut. */
export interface CachedInfoNceOptions extends ContrastiveOptions {
  /** The most documents, or queries, that the model gets at once. Over ranks equal on all. */
  readonly chunkSize: number;
  /** As in embedDocuments. */
  readonly rowLength?: number | undefined;
  /** What gradients are multiplied by, such as GradScaler.factor. The loss is not. Default 1. */
  readonly gradientScale?: number | undefined;
  /**
   * Whether the backward of each chunk reduces its gradients over ranks, rather than the last one
   * all of them. Under FSDP, which keeps unreduced gradients whole, it takes less memory, for more
   * traffic. Default false.
   */
  readonly reduceEachChunk?: boolean | undefined;
}

/** A wrapper whose backwards can add up gradients and leave their reduction to the next one. */
interface Accumulating {
  noSync<T>(body: () => T | Promise<T>): Promise<T>;
}

/** Documents that the model gets at once, and the random state with which it did. */
interface Chunk {
  readonly documents: readonly Document[];
  state?: RandomState;
}

const LIST: OptionRule = { expected: 'a list of documents', holds: Array.isArray };

/**
 * Computes infoNce of a batch and goes backward, with the memory of one chunk's activations; beside
 * them each embedding and its gradient are in memory. Returns the loss, f32 [], without a graph.
 * Gradients are those of infoNce of the whole batch, dropout included, and are added to what the
 * parameters have. The model runs each chunk twice. Where it is a wrapper with noSync (DDP, FSDP)
 * gradients are reduced once, by the last chunk's backward; every rank must then call it with
 * equally many documents.
 * @param model an EmbeddingModel, wrapped or not
 * @throws {NnConfigError} for a batch or options that cannot work
 */
export async function cachedInfoNce(
  model: Module<EmbeddingArgs, Tensor>,
  batch: ContrastiveBatch,
  options: CachedInfoNceOptions,
): Promise<Tensor> {
  checkOptions<CachedInfoNceOptions>('cachedInfoNce', options, {
    ...CONTRASTIVE_RULES,
    chunkSize: whole(1),
    rowLength: optional(whole(1)),
    gradientScale: optional(above(0)),
    reduceEachChunk: optional(FLAG),
  });
  requireBatch(batch);
  const { chunkSize, rowLength, gradientScale, reduceEachChunk, ...loss } = options;
  const { device } = model;
  const { queries, documents, negatives = [] } = batch;
  const parts = [queries, documents, negatives].map((part) => chunksOf(part, chunkSize));
  const chunks = parts.flat();
  const embed = (chunk: Chunk) => embedDocuments(model, chunk.documents, { rowLength });
  return device.scope(async () => {
    const embedded: Tensor[] = [];
    for (const part of parts.filter(({ length }) => length > 0)) {
      embedded.push(await embedPart(device, part, embed));
    }
    try {
      const value = await backwardOfLoss(embedded, loss, gradientScale ?? 1);
      const gradients = embedded.flatMap(({ grad }) => rowsOfChunks(grad!, chunkSize));
      const backward = async (index: number): Promise<void> => {
        device.random.restore(chunks[index]!.state!);
        await device.scope(async () => {
          await (await embed(chunks[index]!)).backward({ gradient: gradients[index]! });
        });
      };
      await eachInTurn(chunks.length, backward, reduceEachChunk === true ? undefined : model);
      return value;
    } finally {
      clearGradients(embedded); // which no scope frees
    }
  });
}

function chunksOf(documents: readonly Document[], size: number): Chunk[] {
  return Array.from({ length: Math.ceil(documents.length / size) }, (_, i) => ({
    documents: documents.slice(i * size, (i + 1) * size),
  }));
}

/** The rows of the gradient that each chunk has. */
function rowsOfChunks(gradient: Tensor, size: number): Tensor[] {
  const rows = gradient.shape[0]!;
  return Array.from({ length: Math.ceil(rows / size) }, (_, i) =>
    slice(gradient, { axis: 0, start: i * size, end: Math.min(rows, (i + 1) * size) }),
  );
}

/** Embeds documents chunk by chunk without a graph, as a leaf that gets a gradient. */
async function embedPart(
  device: Device,
  chunks: readonly Chunk[],
  embed: (chunk: Chunk) => Promise<Tensor>,
): Promise<Tensor> {
  const rows = await device.noGrad(() =>
    device.scope(async () => {
      const each: Tensor[] = [];
      for (const chunk of chunks) {
        chunk.state = device.random.state();
        each.push(await device.scope(() => embed(chunk)));
      }
      return cat(each, { axis: 0 });
    }),
  );
  rows.requiresGrad = true;
  return rows;
}

async function backwardOfLoss(
  [queries, documents, negatives]: readonly Tensor[],
  options: ContrastiveOptions,
  scale: number,
): Promise<Tensor> {
  const { device } = queries!;
  return device.scope(async () => {
    const loss = await infoNce(queries!, documents!, { ...options, negatives });
    await loss.backward({ gradient: device.full([], scale) });
    return loss.detach();
  });
}

/** Runs steps in order, all but the last without reducing where the model can leave that out. */
async function eachInTurn(
  count: number,
  step: (index: number) => Promise<void>,
  model: object | undefined,
): Promise<void> {
  const before = async () => {
    for (let index = 0; index < count - 1; index++) {
      await step(index);
    }
  };
  await (model !== undefined && isAccumulating(model) ? model.noSync(before) : before());
  await step(count - 1);
}

function isAccumulating(model: object): model is Accumulating {
  return 'noSync' in model && typeof model.noSync === 'function';
}

function requireBatch(batch: ContrastiveBatch): void {
  checkNames('cachedInfoNce', batch, ['queries', 'documents', 'negatives']);
  const { queries, documents, negatives = [] } = batch;
  for (const [name, part] of Object.entries({ queries, documents, negatives })) {
    if (!LIST.holds(part)) {
      throw new NnConfigError(`cachedInfoNce: expected ${name} to be ${LIST.expected}.`);
    }
  }
  if (queries.length === 0 || documents.length !== queries.length) {
    throw new NnConfigError(
      `cachedInfoNce: expected a document for each query and at least one, got ${queries.length} queries and ${documents.length} documents. Hard negatives are a list beside them.`,
    );
  }
}
