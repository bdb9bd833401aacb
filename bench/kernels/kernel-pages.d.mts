import type { KernelText } from './hardware-kernels.mjs';
import type { KernelFigures } from './navi31.mjs';

export function matching(kernels: readonly KernelText[], words: readonly string[]): KernelText[];
export function nearest(kernels: readonly KernelText[], words: readonly string[]): string[];
export function listOf(kernels: readonly KernelText[]): string;
export function pagesOf(
  kernels: readonly KernelText[],
  compiled: { readonly figures?: readonly KernelFigures[]; readonly missing?: string },
): string;
