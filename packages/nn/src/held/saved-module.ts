// A model at rest as the pieces that this process has of it, for all that go through a model by
// pieces: saves, loads and hashes.

import type { Tensor } from '@shardweave/tensor-core';
import { pieceOf } from '../flat/layout/flat-plan.js';
import type { HeldCall } from './held.js';
import type { AnyOptimizer, FlatProgress } from './held-flats.js';
import { HeldModule, type PiecesOptions } from './held-module.js';
import type { ModelAtRest } from './model-at-rest.js';

/** What of a model is gone through. */
export interface SavedParts {
  readonly optimizer?: AnyOptimizer;
  readonly onlyTrained?: boolean;
}

export function byPieces(operation: string): HeldCall {
  return { operation, by: 'pieces', isLoad: false };
}

export function savedModule(
  { parts, names, buffers }: ModelAtRest,
  { optimizer, onlyTrained }: SavedParts,
  { hasBuffers }: { readonly hasBuffers: boolean },
): HeldModule {
  const parameters = new Map<Tensor, string>();
  for (const { parameters: tensors, suffix } of parts) {
    for (const tensor of tensors) {
      parameters.set(tensor, `${names.get(tensor)!}${suffix}`);
    }
  }
  return new HeldModule({
    parameters,
    buffers: hasBuffers ? buffers.map(({ name, buffer }) => [name, buffer] as const) : [],
    optimizer,
    onlyTrained,
    groupNames: names, // without suffixes, and so equal on all ranks
  });
}

/** What the ranks agree on for each flat, and which of them this process writes. */
export function sharingOf({ parts, ranks }: ModelAtRest): PiecesOptions {
  const partOf = new Map(
    parts.flatMap((part) => part.parameters.map((tensor) => [pieceOf(tensor).flat, part] as const)),
  );
  return {
    isWriter: ranks.isWriting,
    agree: (flat: Tensor, own: FlatProgress) => partOf.get(flat)!.agreeOnProgress(own),
    isWriting: (flat: Tensor) => ranks.isWriting && partOf.get(flat)!.isWriting,
  };
}
