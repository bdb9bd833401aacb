// An embedder: a transformer without its head, and what makes one row a document of its rows of
// tokens. It has no parameters of its own, and the body's keep their names.

import { ShapeError, slice, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, oneOf, optional, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { LanguageModel } from '../models/language-model.js';
import { Module, requireModule } from '../module.js';
import {
  type Document,
  type DocumentLengths,
  documentRows,
  documentsOf,
  placesOf,
} from './document-rows.js';
import { l2Normalize } from './l2-normalize.js';
import { POOLINGS, type Pooling, pool } from './pool.js';

/** What a body is called with beside ids [batch, seq]: where documents are, u32 [batch, seq]. */
export interface EmbeddingBodyOptions {
  /**
   * The number of the document of each token: a token attends only to its own document. Padding has
   * a number of its own. Absent where each row is one document.
   */
  readonly segments?: Tensor | undefined;
  /** The position of each token in its document. Absent where no row has several documents. */
  readonly positions?: Tensor | undefined;
  /** Given to language models alone, which leave out their head's product. */
  readonly onlyHidden?: boolean | undefined;
}

/**
 * What an embedder is built on: a module that maps ids [batch, seq] to rows [batch, seq, width]. A
 * LanguageModel is one, wrapped or not.
 */
export type EmbeddingBody = Module<[ids: Tensor, options?: EmbeddingBodyOptions], Tensor>;

/** Options of EmbeddingModel. */
export interface EmbeddingModelOptions {
  /** How a document's rows become one. */
  readonly pooling: Pooling;
  /** Whether embeddings have length 1 (L2). Default true. */
  readonly normalize?: boolean | undefined;
  /**
   * How many of an embedding's first numbers are kept, before it is normalized (Matryoshka
   * representations; Kusupati et al., 2022). Default: the body's width.
   */
  readonly dimensions?: number | undefined;
}

/** What an EmbeddingModel is called with beside its ids. */
export interface EmbeddingCallOptions {
  /** The lengths of each row's documents. Default: each row is one document of all its tokens. */
  readonly lengths?: DocumentLengths | undefined;
}

/** The arguments of an EmbeddingModel: ids [batch, seq] (i32 or u32), and where documents are. */
export type EmbeddingArgs = [ids: Tensor, options?: EmbeddingCallOptions | undefined];

/**
 * Maps ids [batch, seq] to one embedding for each document, f32 [documents, dimensions], row by
 * row. Documents that are packed in a row have the embeddings that they have alone, as far as the
 * body keeps them apart by `segments` and `positions`.
 * @example
 * ```ts
 * import { Decoder } from '@shardweave/nn';
 * import { EmbeddingModel, embedDocuments } from '@shardweave/nn/embedding';
 * import { Device } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const body = new Decoder(device, {
 *   model_type: 'qwen3',
 *   vocab_size: 32,
 *   hidden_size: 16,
 *   intermediate_size: 32,
 *   num_hidden_layers: 2,
 *   num_attention_heads: 2,
 *   max_position_embeddings: 16,
 * });
 * const model = new EmbeddingModel(body, { pooling: 'last', dimensions: 8 });
 * const rows = await embedDocuments(model, [[1, 2, 3], [4, 5]]);
 * console.log(rows.shape); // logs [ 2, 8 ]
 * device.dispose();
 * await backend.dispose();
 * ```
 */
export class EmbeddingModel extends Module<EmbeddingArgs, Tensor> {
  readonly body: EmbeddingBody;
  readonly pooling: Pooling;
  readonly normalize: boolean;
  readonly dimensions: number | undefined;
  readonly #isLanguageModel: boolean;

  /** @throws {NnConfigError} for a body that is no module, and for options that cannot work */
  constructor(body: EmbeddingBody, options: EmbeddingModelOptions) {
    requireModule('EmbeddingModel', body, NnConfigError);
    checkOptions<EmbeddingModelOptions>('EmbeddingModel', options, {
      pooling: oneOf(...POOLINGS),
      normalize: optional(FLAG),
      dimensions: optional(whole(1)),
    });
    super(body.device);
    this.body = this.child('body', body);
    this.pooling = options.pooling;
    this.normalize = options.normalize ?? true;
    this.dimensions = options.dimensions;
    this.#isLanguageModel = body
      .namedModules()
      .some(([, module]) => module instanceof LanguageModel);
  }

  override childPrefix(): string {
    return '';
  }

  /**
   * @throws {NnConfigError} for lengths that do not fit the rows
   * @throws {ShapeError} for ids that are no rows, and where the body is narrower than `dimensions`
   */
  async forward(ids: Tensor, options: EmbeddingCallOptions = {}): Promise<Tensor> {
    const { lengths } = options;
    const { spans, shape } = documentsOf({ name: 'EmbeddingModel', ids, lengths });
    const hidden = await this.body.call(ids, {
      ...placesOf(this.device, spans, shape),
      ...(this.#isLanguageModel && { onlyHidden: true }),
    });
    const rows = this.#cut(pool(hidden, spans, this.pooling));
    return this.normalize ? l2Normalize(rows) : rows;
  }

  #cut(rows: Tensor): Tensor {
    const width = rows.shape[1]!;
    const { dimensions = width } = this;
    if (dimensions > width) {
      throw new ShapeError(
        `EmbeddingModel: expected a body of at least ${dimensions} dimensions, got one of ${width}.`,
      );
    }
    return dimensions === width ? rows : slice(rows, { axis: 1, start: 0, end: dimensions });
  }
}

/** Options of embedDocuments: how documents become rows. */
export interface EmbedDocumentsOptions {
  /**
   * The tokens of a row, into which as many documents are packed as fit, in their order. Default:
   * each document has a row of its own, which is padded to the longest one.
   */
  readonly rowLength?: number | undefined;
}

/**
 * Embeds documents of token ids: f32 [documents, dimensions], in their order.
 * @param model an EmbeddingModel, wrapped or not
 * @throws {NnConfigError} for no documents, for one without tokens, and for one longer than a row
 */
export async function embedDocuments(
  model: Module<EmbeddingArgs, Tensor>,
  documents: readonly Document[],
  options: EmbedDocumentsOptions = {},
): Promise<Tensor> {
  checkOptions<EmbedDocumentsOptions>('embedDocuments', options, { rowLength: optional(whole(1)) });
  const { ids, lengths } = documentRows(model.device, documents, {
    op: 'embedDocuments',
    rowLength: options.rowLength,
  });
  return model.call(ids, { lengths });
}
