// Lifetimes of what ops make. A scope holds every storage and graph node made while it is open; at
// its end it hands what the body returned (and graph nodes) to the scope around it and releases
// the rest. Scopes of one device nest in time: one strand of code makes tensors.

import type { GraphNode } from './autograd/node.js';
import { StateError } from './errors.js';
import type { Storage } from './storage.js';
import { isTensor, type Tensor } from './tensor.js';

/** One open scope. */
export class Scope {
  readonly storages = new Set<Storage>();
  readonly nodes = new Set<GraphNode>();
}

/** The open scopes of one device. */
export class ScopeStack {
  readonly #open: Scope[] = [];

  get current(): Scope | undefined {
    return this.#open.at(-1);
  }

  enter(): Scope {
    const scope = new Scope();
    this.#open.push(scope);
    return scope;
  }

  /** Ends `scope`; tensors found in `result` survive in the scope around it, or as kept. */
  exit(scope: Scope, result: unknown): void {
    if (this.#open.at(-1) !== scope) {
      throw new StateError(
        'scope: expected scopes to end in the order opposite to their start. Two strands of code use one device at once; await one before starting the other, or give each its own Device.',
      );
    }
    this.#open.pop();
    const outer = this.current;
    const kept = tensorsIn(result);
    const keptStorages = new Set(kept.map((tensor) => tensor.storage));
    const keptNodes = outer === undefined ? reachableNodes(kept) : undefined;
    for (const node of scope.nodes) {
      if (outer !== undefined) outer.nodes.add(node);
      else if (!keptNodes!.has(node)) node.release();
    }
    for (const storage of scope.storages) {
      if (!keptStorages.has(storage)) storage.release();
      else if (outer !== undefined && outer.storages.has(storage)) storage.release();
      else outer?.storages.add(storage);
    }
  }
}

/** All tensors in a value: itself, or inside arrays, maps, sets and objects. */
export function tensorsIn(value: unknown): Tensor[] {
  const found: Tensor[] = [];
  const seen = new Set<unknown>();
  const visit = (item: unknown): void => {
    if (typeof item !== 'object' || item === null || seen.has(item)) return;
    seen.add(item);
    if (isTensor(item)) {
      found.push(item);
      return;
    }
    if (ArrayBuffer.isView(item)) return;
    if (item instanceof Map) for (const entry of item.values()) visit(entry);
    else if (item instanceof Set || Array.isArray(item)) for (const entry of item) visit(entry);
    else for (const entry of Object.values(item)) visit(entry);
  };
  visit(value);
  return found;
}

function reachableNodes(tensors: readonly Tensor[]): Set<GraphNode> {
  const reached = new Set<GraphNode>();
  const stack = tensors.flatMap((tensor) => tensor.node ?? []);
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (reached.has(node)) continue;
    reached.add(node);
    for (const edge of node.edges) if (edge?.node !== undefined) stack.push(edge.node);
  }
  return reached;
}
