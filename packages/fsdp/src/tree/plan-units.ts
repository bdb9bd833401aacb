// Decides which parameters of an instance become one flat parameter. Pure.

import { encodingOf, type FlatLeaf } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError } from '../errors.js';
import type { ParameterGroup } from '../options.js';
import type { UnitPlan } from '../unit/sharded-unit.js';

/** Token tables that ranks use in parts, each a unit of its own. */
export function planTables(tables: readonly FlatLeaf[], name: string): UnitPlan[] {
  return tables.map((table) => ({
    name: `${name}.${table.path}`,
    parameters: [table],
    isTable: true,
  }));
}

/**
 * @param name the name of the instance; a single unit has it too, several units add their own names
 * @throws {FsdpConfigError} for groups with parameters of other modules, with a parameter in two
 * groups, or with names that repeat
 */
export function planUnits(
  parameters: readonly FlatLeaf[],
  flattenParameters: boolean | readonly ParameterGroup[],
  name: string,
): UnitPlan[] {
  const single = (parameter: FlatLeaf): UnitPlan => ({
    name: `${name}.${parameter.path}`,
    parameters: [parameter],
  });
  if (flattenParameters === false) {
    return parameters.map(single);
  }
  if (flattenParameters === true) {
    return ofOneKind(parameters, name);
  }
  const left = new Map(parameters.map((parameter) => [parameter.tensor, parameter]));
  const grouped = flattenParameters.map((group) => {
    const members = [...new Set(group.params)].map((tensor) => {
      const member = left.get(tensor);
      if (member === undefined || !left.delete(tensor)) {
        throw new FsdpConfigError(
          `fsdp: expected group '${group.name}' of parameters of this module's own, each in one group, got '${tensor.name || `[${tensor.shape.join(', ')}]`}'. Take it out of the group or of another.`,
        );
      }
      return member;
    });
    if (members.length === 0) {
      throw new FsdpConfigError(
        `fsdp: expected at least one parameter in group '${group.name}', got none.`,
      );
    }
    const [first] = members;
    const formOf = ({ tensor }: FlatLeaf) => `${restOf(tensor)} ${tensor.dtype}`.trimStart();
    const other = members.find((member) => formOf(member) !== formOf(first!));
    if (other !== undefined) {
      throw new FsdpConfigError(
        `fsdp: expected parameters of one dtype in group '${group.name}', got ${formOf(first!)} '${first!.path}' and ${formOf(other)} '${other.path}'. Make a group for each.`,
      );
    }
    return { name: `${name}.${group.name}`, parameters: members };
  });
  const names = new Set(grouped.map((plan) => plan.name));
  if (names.size !== grouped.length) {
    throw new FsdpConfigError(
      `fsdp: expected groups of different names, got ${flattenParameters.map((group) => `'${group.name}'`).join(', ')}.`,
    );
  }
  return [...grouped, ...[...left.values()].map(single)];
}

/**
 * Makes one unit for each dtype of trained parameters, then one for each dtype of frozen ones,
 * which are gathered but need neither a gradient nor a reduction; encoded parameters are apart. The
 * first unit has the bare name.
 */
function ofOneKind(parameters: readonly FlatLeaf[], name: string): UnitPlan[] {
  const kinds = new Map<string, FlatLeaf[]>();
  const trained = parameters.filter(({ tensor }) => tensor.requiresGrad);
  const frozen = parameters.filter(({ tensor }) => !tensor.requiresGrad);
  for (const parameter of [...trained, ...frozen]) {
    const { dtype, requiresGrad } = parameter.tensor;
    const main = (requiresGrad ? trained : frozen)[0]!.tensor.dtype;
    const rest = restOf(parameter.tensor);
    const rests = rest === '' ? '' : `.${rest}`;
    const kind = `${requiresGrad || trained.length === 0 ? '' : '.frozen'}${rests}${dtype === main ? '' : `.${dtype}`}`;
    kinds.set(kind, [...(kinds.get(kind) ?? []), parameter]);
  }
  return [...kinds].map(([kind, members]) => ({ name: `${name}${kind}`, parameters: members }));
}

/** What rests in place of values: 'encoded' bytes, or 'blocks', which no load decodes. */
function restOf(tensor: Tensor): '' | 'encoded' | 'blocks' {
  const encoding = encodingOf(tensor);
  if (encoding === undefined) {
    return '';
  }
  return encoding.decodesOn === 'use' ? 'blocks' : 'encoded';
}
