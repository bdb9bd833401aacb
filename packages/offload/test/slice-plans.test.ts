// These tests check which of the slices chosen earlier a call may use.

import { expect, it } from 'vitest';
import { type SlicePlan, SlicePlans } from '../src/slices/slice-plans.js';

const plan = (isTraining: boolean): SlicePlan => ({
  shapes: [[8, 8]],
  isTraining,
  neededBytes: 100,
  slices: [],
});
const call = { shapes: [[8, 8]], roomBytes: 100 };

it('chosen for training may be used for evaluation, and never the other way around', () => {
  const [trained, evaluated] = [plan(true), plan(false)];
  const plans = new SlicePlans();
  plans.add(evaluated);
  expect(plans.find({ ...call, isTraining: true })).toBeUndefined();
  expect(plans.find({ ...call, isTraining: false })).toBe(evaluated);
  plans.add(trained);
  expect(plans.find({ ...call, isTraining: true })).toBe(trained);
  expect(plans.find({ ...call, isTraining: false })).toBe(trained); // This is the newest plan.
});

it('plans are used where there is the measured room, and for inputs that are no larger', () => {
  const plans = new SlicePlans();
  plans.add(plan(true));
  expect(plans.find({ ...call, isTraining: true, roomBytes: 99 })).toBeUndefined();
  expect(plans.find({ ...call, isTraining: true, shapes: [[9, 8]] })).toBeUndefined();
  expect(plans.find({ ...call, isTraining: true, shapes: [[8]] })).toBeUndefined();
  expect(plans.find({ ...call, isTraining: true, shapes: [[1, 7]] })).toBeDefined();
});
