// Embeddings on the host, and what the device computes of them: from texts, and products of all
// queries with all documents.

import type { Module } from '@shardweave/nn';
import { type EmbeddingArgs, embedDocuments, type TypedDocument } from '@shardweave/nn/embedding';
import { type Device, matmul, type Tensor } from '@shardweave/tensor-core';

/** The most queries whose scores are on the host at once. */
const QUERIES = 64;
/** The most numbers of a tensor here, 64 MiB: devices bound the bytes that a kernel can see. */
const BLOCK_NUMBERS = 2 ** 24;

/** Embeddings on the host, [count, width]. */
export class EmbeddingRows {
  readonly values: Float32Array<ArrayBuffer>;
  readonly width: number;

  constructor(values: Float32Array<ArrayBuffer>, width: number) {
    this.values = values;
    this.width = width;
  }

  get count(): number {
    return this.values.length / this.width;
  }

  row(i: number): Float32Array<ArrayBuffer> {
    return this.values.subarray(i * this.width, (i + 1) * this.width);
  }

  /** Makes the length of each row 1. */
  normalize(): void {
    for (let i = 0; i < this.count; i++) {
      const row = this.row(i);
      const length = Math.sqrt(dot(row, row));
      row.forEach((value, j) => {
        row[j] = value / (length || 1);
      });
    }
  }

  /** The first numbers of each row. */
  cut(width: number): EmbeddingRows {
    const found = new EmbeddingRows(new Float32Array(this.count * width), width);
    for (let i = 0; i < this.count; i++) {
      found.row(i).set(this.row(i).subarray(0, width));
    }
    return found;
  }
}

export function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

/** Embeds texts in one call of the model, which is in evaluation mode. Collective. */
export function embedRows(
  module: Module<EmbeddingArgs, Tensor>,
  texts: readonly TypedDocument[],
  { rowLength }: { readonly rowLength: number },
): Promise<EmbeddingRows> {
  const { device } = module;
  return device.noGrad(() =>
    device.scope(async () => {
      const ids = texts.map((text) => text.ids);
      const embedded: Tensor = await embedDocuments(module, ids, { rowLength });
      const values = (await embedded.toArray()) as Float32Array<ArrayBuffer>;
      return new EmbeddingRows(values, embedded.shape[1]!);
    }),
  );
}

export interface Compared {
  readonly queries: EmbeddingRows;
  readonly documents: EmbeddingRows;
  /** The most numbers of a tensor. Default BLOCK_NUMBERS. */
  readonly most?: number | undefined;
}

/**
 * Hands each query's products with all documents to `use`, query by query. The scores are valid
 * until it returns.
 */
export async function eachQuery(
  device: Device,
  { queries, documents, most = BLOCK_NUMBERS }: Compared,
  use: (query: number, scores: Float32Array) => void,
): Promise<void> {
  const { width, count } = documents;
  const atOnce = Math.max(1, Math.min(QUERIES, Math.floor(most / count)));
  const perBlock = Math.max(1, Math.floor(most / width));
  await device.noGrad(() =>
    device.scope(async () => {
      const blocks: Tensor[] = [];
      for (let first = 0; first < count; first += perBlock) {
        blocks.push(columnsOf(device, documents, [first, Math.min(first + perBlock, count)]));
      }
      for (let first = 0; first < queries.count; first += atOnce) {
        const end = Math.min(first + atOnce, queries.count);
        const values = queries.values.slice(first * width, end * width);
        const scores = new Float32Array((end - first) * count);
        for (const [i, block] of blocks.entries()) {
          const part = await device.scope(async () => {
            const rows = device.tensor(values, [end - first, width]);
            return (await matmul(rows, block).toArray()) as Float32Array;
          });
          const size = block.shape[1]!;
          for (let row = 0; row < end - first; row++) {
            const own = part.subarray(row * size, (row + 1) * size);
            scores.set(own, row * count + i * perBlock);
          }
        }
        for (let query = first; query < end; query++) {
          use(query, scores.subarray((query - first) * count, (query - first + 1) * count));
        }
      }
    }),
  );
}

/** Documents as columns, [width, documents], from `first` to before `end`. */
function columnsOf(
  device: Device,
  documents: EmbeddingRows,
  [first, end]: readonly [number, number],
): Tensor {
  const { width } = documents;
  const count = end - first;
  const columns = new Float32Array(width * count);
  for (let i = 0; i < count; i++) {
    for (const [j, value] of documents.row(first + i).entries()) {
      columns[j * count + i] = value;
    }
  }
  return device.tensor(columns, [width, count]);
}
