// Lifetimes of what ops make. A scope holds every storage and every graph node that is made while
// it is open. When it ends, the storages of tensors that the body returned go to the scope around
// it, and all others are released. Graph nodes all go to the scope around it, because a backward
// there may still need them. The outermost scope has none around it: it gives the returned tensors
// to the caller, who disposes of them, and releases the nodes that those tensors do not need.
//
// Scopes of one device nest like calls: the last one that began ends first. So only one strand of
// asynchronous code at a time may make tensors on a device.

import type { GraphNode } from '../autograd/node.js';
import { StateError } from '../errors.js';
import { isTensor, type Tensor } from '../tensor.js';
import type { Storage } from './storage.js';

/** One open scope, with one hold on each of its storages. */
class Scope {
  readonly storages = new Set<Storage>();
  readonly nodes: GraphNode[] = [];
}

/** The open scopes of one device, the outermost first. */
export class ScopeStack {
  #open: Scope[] = [];

  get current(): Scope | undefined {
    return this.#open.at(-1);
  }

  /** Puts a further tensor over a storage into the current scope. Ops that make views call it. */
  track(tensor: Tensor): void {
    const scope = this.current;
    if (scope === undefined) {
      tensor.storage.retain();
      tensor.markKept();
    } else if (!scope.storages.has(tensor.storage)) {
      tensor.storage.retain();
      scope.storages.add(tensor.storage);
    }
  }

  /** Takes a tensor's storage out of the current scope. The caller becomes its holder. */
  untrack(tensor: Tensor): void {
    const scope = this.current;
    if (scope !== undefined && !scope.storages.delete(tensor.storage)) {
      tensor.storage.retain();
    }
  }

  /** Ends the current scope's hold on a tensor's storage. Returns false where it has none. */
  drop(tensor: Tensor): boolean {
    const isHeld = this.current?.storages.delete(tensor.storage) ?? false;
    if (isHeld) {
      tensor.storage.release();
    }
    return isHeld;
  }

  /** Makes the next scope an outermost one, until the returned function brings the others back. */
  setAside(): () => void {
    const open = this.#open;
    this.#open = [];
    return () => {
      this.#open = open;
    };
  }

  enter(): Scope {
    const scope = new Scope();
    this.#open.push(scope);
    return scope;
  }

  /**
   * Ends `scope`. Tensors found in `result` go to the scope around it; where there is none they
   * become kept ones, which live until their owner disposes of them.
   * @throws {StateError} where `scope` is not the innermost one; what it held is released all the
   * same
   */
  exit(scope: Scope, result: unknown): void {
    if (this.current !== scope) {
      this.abandon(scope);
      throw new StateError(
        'scope: expected scopes to end in the order opposite to their start. Two strands of code use one device at once; await one before starting the other, or give each its own Device.',
      );
    }
    this.#open.pop();
    const outer = this.current;
    const survivors = tensorsIn(result);
    moveNodes(scope, outer, survivors);
    if (outer === undefined) {
      keepSurvivors(scope, survivors);
    } else {
      passOn(scope, outer, survivors);
    }
    releaseAll(scope);
  }

  /** Ends `scope` after a failure, wherever it is in the stack. Never throws. */
  abandon(scope: Scope): void {
    const index = this.#open.indexOf(scope);
    if (index >= 0) {
      this.#open.splice(index, 1);
    }
    moveNodes(scope, this.current, []);
    releaseAll(scope);
  }
}

// A kept tensor holds its storage itself, so it needs nothing from the scope. The scope's one hold
// of a storage passes on once, to the scope around it or to the first of the tensors that are left.

function passOn(scope: Scope, outer: Scope, survivors: readonly Tensor[]): void {
  for (const { storage, isKept } of survivors) {
    if (!isKept && !outer.storages.has(storage) && scope.storages.delete(storage)) {
      outer.storages.add(storage);
    }
  }
}

function keepSurvivors(scope: Scope, survivors: readonly Tensor[]): void {
  const inherited = new Set<Storage>();
  for (const tensor of survivors) {
    const { storage, isKept } = tensor;
    if (isKept) {
      continue;
    }
    if (scope.storages.delete(storage)) {
      inherited.add(storage);
      tensor.markKept();
    } else if (inherited.has(storage)) {
      storage.retain();
      tensor.markKept();
    }
  }
}

function releaseAll(scope: Scope): void {
  for (const storage of scope.storages) {
    storage.release();
  }
}

/** All tensors in a value: the value itself, or what arrays, maps, sets and objects in it have. */
export function tensorsIn(value: unknown): Tensor[] {
  if (isTensor(value)) {
    return [value];
  }
  const found: Tensor[] = [];
  const seen = new Set<unknown>();
  const visit = (item: unknown): void => {
    if (typeof item !== 'object' || item === null || seen.has(item)) {
      return;
    }
    seen.add(item);
    if (isTensor(item)) {
      found.push(item);
      return;
    }
    if (ArrayBuffer.isView(item)) {
      return;
    }
    if (item instanceof Map) {
      for (const entry of item.values()) {
        visit(entry);
      }
    } else if (item instanceof Set || Array.isArray(item)) {
      for (const entry of item) {
        visit(entry);
      }
    } else {
      for (const entry of Object.values(item)) {
        visit(entry);
      }
    }
  };
  visit(value);
  return found;
}

/**
 * Passes the scope's nodes to the scope around it. At the end of the outermost scope it releases
 * them, but for those that lead from a tensor which survives back to the leaves.
 */
function moveNodes(scope: Scope, outer: Scope | undefined, survivors: readonly Tensor[]): void {
  const needed = outer === undefined ? reachableNodes(survivors) : undefined;
  for (const node of scope.nodes) {
    if (node.isReleased) {
      continue;
    }
    if (outer !== undefined) {
      outer.nodes.push(node);
    } else if (!needed!.has(node)) {
      node.release();
    }
  }
}

function reachableNodes(tensors: readonly Tensor[]): Set<GraphNode> {
  const reached = new Set<GraphNode>();
  const stack = tensors.flatMap((tensor) => tensor.origin?.node ?? []);
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (reached.has(node)) {
      continue;
    }
    reached.add(node);
    for (const edge of node.edges) {
      if (edge?.node !== undefined) {
        stack.push(edge.node);
      }
    }
  }
  return reached;
}
