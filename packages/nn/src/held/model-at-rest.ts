// A model, or several, as what holds their values: who answers for which parameters, and all of
// them as one. See Note [who answers].

import type { DType, Tensor } from '@shardweave/tensor-core';
import { isFloat } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { isCopy } from '../flat/placement.js';
import { isBesideBackward, notAtRest } from '../flat/stores/flat-home.js';
import { checkModules, isModule, type Module } from '../module.js';
import { joinPath } from '../parameters/join-path.js';
import type { AtRest, Held, HeldBy, HeldCall, Holder } from './held.js';
import { HELD } from './held.js';
import { plainAtRest } from './plain-parts.js';
import type { StateDictPlaces } from './state-entry.js';

/**
 * A module, wrapped or not, or several that count as one. The names of several begin with their
 * index in the list.
 */
export type Models = Module | readonly Module[];

/** What is held of a model during one call. */
export interface ModelAtRest extends AtRest {
  /** The names of all parameters in the bare model, in its order. */
  readonly names: ReadonlyMap<Tensor, string>;
  readonly buffers: readonly NamedBuffer[];
  /** Where a state dict goes if the call does not say. */
  readonly places: Required<StateDictPlaces>;
}

/** A buffer with its name, and the dtype that it has in a state dict. */
export interface NamedBuffer {
  readonly name: string;
  readonly buffer: Tensor;
  readonly dtype: DType;
}

/**
 * Runs `body` while all that the models hold is at rest.
 * @throws {NnConfigError} for what is no module, for wrappers over several process groups, and for
 * parameters that rest with a wrapper outside the models
 * @throws {OptimizerError} beside a backward that nobody awaited
 */
export async function whileAtRest<T>(
  models: Models,
  call: HeldCall,
  body: (held: ModelAtRest) => Promise<T>,
): Promise<T> {
  const modules = isModule(models) ? [models] : models;
  checkModules(call.operation, modules, 'a module or an array of modules');
  const { holders, plain } = holdersIn(modules, call.operation);
  const helds = holders.map(({ by, wrappers }) => ({ held: by.together(wrappers), wrappers }));
  const named = (own: (module: Module) => [string, Tensor][]) =>
    isModule(models)
      ? own(models)
      : modules.flatMap((module, i) =>
          own(module).map(([path, tensor]): [string, Tensor] => [
            joinPath(String(i), path),
            tensor,
          ]),
        );
  const names = firstNames(named((module) => module.namedParameters()));
  const beside = [...names.keys()].find(isBesideBackward);
  const cast = new Set([
    ...helds.flatMap(({ held, wrappers }) =>
      held.castsBuffers === true ? wrappers.flatMap(buffersOf) : [],
    ),
    ...modules.filter(hasPackedCopies).flatMap(buffersOf),
  ]);
  const buffers = [...firstNames(named((module) => module.namedBuffers()))].map(
    ([buffer, name]): NamedBuffer => {
      const isCast = cast.has(buffer) && isFloat(buffer.dtype);
      return { name, buffer, dtype: isCast ? 'f32' : buffer.dtype };
    },
  );
  const places = helds.find(({ held }) => held.places !== undefined)?.held.places;
  const enter = (index: number, entered: readonly AtRest[]): Promise<T> => {
    const next = helds[index]?.held;
    if (next !== undefined) {
      return next.whileAtRest(call, (held) => enter(index + 1, [...entered, held]));
    }
    if (beside !== undefined) {
      throw notAtRest(call.operation, beside, 'backward'); // unless a wrapper has refused it before
    }
    const ranks = entered.find((held) => !held.ranks.isAlone)?.ranks ?? entered[0]?.ranks;
    const named = [...names].flatMap(([tensor, name]) =>
      plain.has(tensor) ? [[name, tensor] as const] : [],
    );
    const all = [plainAtRest(named, call, ranks), ...entered];
    const { isFirst } = all[0]!.ranks;
    return body({
      names,
      buffers,
      places: places ?? { stateDictDevice: 'host', stateDictOnRank0Only: false },
      // What knows no ranks is a replica where there are some, and the first one writes its own.
      parts: all.flatMap(({ parts, ranks: { isAlone } }) =>
        isAlone && !isFirst ? parts.map((part) => ({ ...part, isWriting: false })) : parts,
      ),
      ranks: all[0]!.ranks,
      requireUnchanged: () => {
        for (const held of all) {
          held.requireUnchanged();
        }
      },
    });
  };
  return enter(0, []);
}

interface FoundHolders {
  /** Wrappers of one kind together. */
  readonly holders: readonly { readonly by: HeldBy; readonly wrappers: readonly Module[] }[];
  /** The parameters for which no wrapper answers. */
  readonly plain: ReadonlySet<Tensor>;
}

/** A wrapper, and how it is asked. */
interface FoundHolder {
  readonly by: HeldBy;
  readonly module: Module;
}

/** A wrapper's name in errors with its path, for all wrappers may have the same name. */
function labelIn(modules: readonly Module[], { by, module }: FoundHolder): string {
  const paths = modules.flatMap((model, i) =>
    model
      .namedModules(modules.length === 1 ? '' : String(i))
      .flatMap(([path, inner]) => (inner === module ? [path] : [])),
  );
  return paths[0] === '' ? `'${by.name}'` : `'${by.name}' at '${paths[0]}'`;
}

/** @throws {NnConfigError} where wrappers are over several process groups */
function holdersIn(modules: readonly Module[], operation: string): FoundHolders {
  const found = new Map<
    Held['whileAtRest'] | HeldBy['together'],
    { by: HeldBy; wrappers: Module[] }
  >();
  const own = new Set<Tensor>();
  const seen = new Set<Module>();
  let first: FoundHolder | undefined;
  const visit = (module: Module): void => {
    if (seen.has(module)) {
      return;
    }
    seen.add(module);
    const by = (module as Partial<Holder>)[HELD];
    if (by === undefined) {
      for (const tensor of module.ownParameters().values()) {
        own.add(tensor);
      }
      for (const child of module.children().values()) {
        visit(child);
      }
      return;
    }
    first = by.group === undefined ? first : (first ?? { by, module });
    if (by.group !== undefined && by.group !== first!.by.group) {
      const [one, other] = [first!, { by, module }].map((found) => labelIn(modules, found));
      throw new NnConfigError(
        `${operation}: expected wrappers over one process group, got ${one} and ${other} over two. Call it with each alone.`,
      );
    }
    const alike = found.get(by.together);
    if (alike === undefined) {
      found.set(by.together, { by, wrappers: [module] });
    } else {
      alike.wrappers.push(module);
    }
  };
  for (const module of modules) {
    visit(module);
  }
  const holders = [...found.values()];
  const held = new Set(
    holders.flatMap(({ wrappers }) => wrappers.flatMap((wrapper) => wrapper.parameters())),
  );
  return { holders, plain: new Set([...own].filter((tensor) => !held.has(tensor))) };
}

/** Whether packing has made a module compute in another dtype than that of its masters. */
function hasPackedCopies(module: Module): boolean {
  return module.parameters().some((tensor) => tensor.piece?.isPacked === true && isCopy(tensor));
}

function buffersOf(module: Module): Tensor[] {
  return module.namedBuffers().map(([, buffer]) => buffer);
}

/** Each tensor with its first name. */
function firstNames(named: readonly (readonly [string, Tensor])[]): Map<Tensor, string> {
  const names = new Map<Tensor, string>();
  for (const [name, tensor] of named) {
    if (!names.has(tensor)) {
      names.set(tensor, name);
    }
  }
  return names;
}
