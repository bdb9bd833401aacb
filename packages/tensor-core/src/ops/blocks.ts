// Matrices whose numbers rest in ggml's blocks: making one, reading all its numbers, and walking
// through them a panel at a time, so that a product never holds the whole of them.

import { byteSize, type DType, isFloat } from '@shardweave/dtypes';
import { BLOCK_SIZES, BLOCK_TYPES, type BlockType } from '@shardweave/dtypes/blocks';
import type { Device, TensorOptions } from '../device.js';
import { DTypeError, OptionError, ShapeError } from '../errors.js';
import type { KernelCalls } from '../kernel-calls/kernel-calls.js';
import { shown } from '../options.js';
import { elementCountOf, type Shape, Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { shapeText } from './checks.js';
import type { TensorData } from './tensor-data.js';

/** The most bytes of decoded numbers that a product has at once: a few of a CPU's caches. */
const PANEL_BYTES = 4 * 2 ** 20;
/** The same on a hardware GPU, where a call of a product costs more than memory. */
const PANEL_BYTES_GPU = 64 * 2 ** 20;
/**
 * Panels begin at multiples of so many rows and columns. The cpu device adds up the terms of a
 * product in runs of as many, so a sum over rows is made in the same order, panel by panel.
 */
const PANEL_STEP = 256;

/** All numbers of a matrix in blocks, as a tensor outside of the graph. */
export function decoded(x: Tensor, dtype: DType): Tensor {
  const out = x.device.empty(x.shape, { dtype });
  if (out.size > 0) {
    const [count, columns] = sidesOf(x);
    const places = { ids: undefined, firstRow: 0, count, firstColumn: 0, columns };
    runDecode(x, out.view(), places);
  }
  return out;
}

/** Queues the kernel that decodes a part of a matrix in blocks. */
export function runDecode(
  x: Tensor,
  out: View,
  places: Pick<
    KernelCalls['decodeBlocks'],
    'ids' | 'firstRow' | 'count' | 'firstColumn' | 'columns'
  >,
): void {
  const [rows, width] = sidesOf(x);
  const { words, type } = x.blocks!;
  x.device.run('decodeBlocks', { words: words.view(), out, type, rows, width, ...places });
}

/** Rows or columns [first, first + count) of a matrix, decoded: [count, width] or [rows, count]. */
export interface Panel {
  readonly numbers: View;
  readonly first: number;
  readonly count: number;
}

/**
 * Decodes a matrix panel by panel and calls `body` with each. Its kernels are queued before the
 * next panel takes the same memory. How a matrix is cut depends on its shape and dtype alone.
 * @param cut.isWhole whether all of it is one panel. Default false
 */
export function eachPanel(
  x: Tensor,
  { by, isWhole = false }: { readonly by: 'rows' | 'columns'; readonly isWhole?: boolean },
  body: (panel: Panel) => void,
): void {
  const { device } = x;
  const [rows, width] = sidesOf(x);
  const [total, other] = by === 'rows' ? [rows, width] : [width, rows];
  const most = isWhole ? total : panelSize(x, total, other);
  device.scope(() => {
    const room = device.empty([Math.min(most, total) * other], { dtype: x.dtype });
    for (let first = 0; first < total; first += most) {
      const count = Math.min(most, total - first);
      const numbers = room.storage.view(0, count * other);
      const places =
        by === 'rows'
          ? { firstRow: first, count, firstColumn: 0, columns: width }
          : { firstRow: 0, count: rows, firstColumn: first, columns: count };
      runDecode(x, numbers, { ids: undefined, ...places });
      body({ numbers, first, count });
    }
  });
}

/** As many whole steps as fit, in panels of about the same size. */
function panelSize({ device, dtype }: Tensor, total: number, other: number): number {
  const { kind, isSoftware } = device.backend.info;
  const bytes = kind === 'webgpu' && !isSoftware ? PANEL_BYTES_GPU : PANEL_BYTES;
  const fit = Math.floor(bytes / (byteSize(dtype) * other * PANEL_STEP));
  const steps = Math.ceil(total / PANEL_STEP);
  const panels = Math.ceil(steps / Math.max(1, fit));
  return Math.ceil(steps / panels) * PANEL_STEP;
}

function sidesOf({ shape }: Tensor): [rows: number, width: number] {
  return [elementCountOf(shape.slice(0, -1)), shape.at(-1) ?? 1];
}

/**
 * A tensor over bytes that are blocks, as Device.tensor makes it.
 * @throws {OptionError} for an unknown type, or blocks that shall be trained
 * @throws {DTypeError} for a dtype that is no float
 * @throws {ShapeError} for rows that are not whole blocks, and for another number of bytes
 */
export function tensorOfBlocks(
  device: Device,
  data: TensorData,
  options: Omit<TensorOptions, 'blocks'> & {
    readonly shape: Shape | undefined;
    readonly type: BlockType;
  },
): Tensor {
  const { shape, type, dtype = 'f32', tag = 'activation', requiresGrad = false } = options;
  if (!BLOCK_TYPES.includes(type)) {
    throw new OptionError(
      `tensor: expected blocks among ${BLOCK_TYPES.join(', ')}, got ${shown(type)}.`,
    );
  }
  if (requiresGrad) {
    throw new OptionError(
      `tensor: expected ${type} blocks without requiresGrad, got true. Blocks are not trained: train something beside them.`,
    );
  }
  const { elements, bytes } = BLOCK_SIZES[type];
  const byteLength = (elementCountOf(shape ?? []) / elements) * bytes;
  const isWhole = shape !== undefined && (shape.at(-1) ?? 0) % elements === 0;
  if (!isWhole || !(data instanceof Uint8Array) || data.byteLength !== byteLength) {
    const got = data instanceof Uint8Array ? `${data.byteLength} bytes` : shown(data);
    throw new ShapeError(
      `tensor: expected a shape whose rows are multiples of ${elements}, the block size of ${type}, and ${isWhole ? `${byteLength} bytes` : 'their bytes'} of blocks, got ${shape === undefined ? 'no shape' : shapeText(shape)} and ${got}.`,
    );
  }
  if (!isFloat(dtype)) {
    throw new DTypeError(`tensor: expected a float dtype for blocks to become, got ${dtype}.`);
  }
  const words = device.empty([Math.ceil(byteLength / 4)], { dtype: 'u32', tag });
  const padded = new Uint8Array(words.size * 4);
  padded.set(data);
  words.storage.write(padded);
  const tensor = new Tensor(words.storage, shape);
  tensor.rebind(words.storage, 0, { type, dtype });
  return words.isKept ? tensor.markKept() : tensor;
}
