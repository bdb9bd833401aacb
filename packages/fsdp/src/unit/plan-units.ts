// Which parameters of an instance become one flat parameter. Pure.

import { FsdpConfigError } from '../errors.js';
import type { ParameterGroup } from '../options.js';
import type { UnitParameter } from './sharded-unit.js';

export interface UnitPlan {
  readonly name: string;
  readonly parameters: readonly UnitParameter[];
}

/**
 * @param name the instance's; the only unit has it too, others add their own
 * @throws {FsdpConfigError} for groups with foreign parameters, with one in two groups, or with names
 * that repeat
 */
export function planUnits(
  parameters: readonly UnitParameter[],
  flattenParameters: boolean | readonly ParameterGroup[],
  name: string,
): UnitPlan[] {
  const single = (parameter: UnitParameter): UnitPlan => ({
    name: `${name}.${parameter.path}`,
    parameters: [parameter],
  });
  if (flattenParameters === false) {
    return parameters.map(single);
  }
  if (flattenParameters === true) {
    // What is frozen is gathered, but needs neither a gradient nor its reduction.
    const isFrozen = ({ tensor }: UnitParameter) => !tensor.requiresGrad;
    const frozen = parameters.filter(isFrozen);
    const trained = parameters.filter((parameter) => !isFrozen(parameter));
    if (frozen.length === 0 || trained.length === 0) {
      return parameters.length === 0 ? [] : [{ name, parameters }];
    }
    return [
      { name, parameters: trained },
      { name: `${name}.frozen`, parameters: frozen },
    ];
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
