// The calls of all kernels, which are the seam between ops and backends.

import type { CustomCalls } from './custom.js';
import type { ElementwiseCalls } from './elementwise.js';
import type { IndexingCalls } from './indexing.js';
import type { ProductCalls } from './products.js';
import type { RowCalls } from './rows.js';
import type { UpdateCalls } from './updates.js';

/**
 * What each kernel is called with, by its name: the table that every backend implements whole.
 * `backend.run('cast', { x, out })` takes KernelCalls['cast'].
 */
export interface KernelCalls
  extends ElementwiseCalls,
    IndexingCalls,
    RowCalls,
    ProductCalls,
    UpdateCalls,
    CustomCalls {}

/** The name of a kernel, such as 'matmul' or 'softmax'. */
export type KernelName = keyof KernelCalls;

/**
 * The properties of calls whose values hold views themselves: a custom kernel's operands and a
 * product's epilogue.
 */
export const NESTED_VIEWS: ReadonlySet<string> = new Set(['inputs', 'epilogue']);
