// All kernels of the seam, by name, with what each is called with.

import type { CustomCalls } from './custom.js';
import type { ElementwiseCalls } from './elementwise.js';
import type { IndexingCalls } from './indexing.js';
import type { ProductCalls } from './products.js';
import type { RowCalls } from './rows.js';
import type { UpdateCalls } from './updates.js';

export interface KernelCalls
  extends ElementwiseCalls,
    IndexingCalls,
    RowCalls,
    ProductCalls,
    UpdateCalls,
    CustomCalls {}

export type KernelName = keyof KernelCalls;

/** Values of calls that hold views themselves: a custom kernel's operands, a product's epilogue. */
export const NESTED_VIEWS: ReadonlySet<string> = new Set(['inputs', 'epilogue']);
