// Cases of adam and sgd over several steps, with gaps between segments, groups, a gradient scale
// and all dtypes of gradients.

import type { DType } from '@shardweave/dtypes';
import type { AdamGroup, Segment, SgdGroup } from '../../kernel-calls/optimizer.js';
import type { CallRecorder, FloatOptions } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

const SIZE = 1000;
const NUM_STEPS = 3;
/** Segments with gaps before, between and after them, single elements and odd starts. */
const SEGMENTS: readonly Segment[] = [
  { start: 1, length: 1, group: 0 },
  { start: 3, length: 60, group: 1 },
  { start: 63, length: 2, group: 0 },
  { start: 70, length: 513, group: 2 },
  { start: 583, length: 1, group: 1 },
  { start: 601, length: 390, group: 0 },
];
const STATE: FloatOptions = { isWritten: true, offset: 1 };

export function optimizerCases(): ConformanceCase[] {
  return [
    ...FLOATS.flatMap((dtype) => [adamCase(dtype), sgdCase(dtype)]),
    manySegmentsCase(),
    noMomentumCase(),
  ];
}

function adamCase(gradType: DType): ConformanceCase {
  return recordedCase(`adam with ${gradType} gradients`, 'transcendental', (calls) => {
    for (const hasScale of [false, true]) {
      const state = {
        param: calls.floats(SIZE, 'f32', STATE),
        expAvg: calls.values(new Array(SIZE).fill(0), 'f32', STATE),
        expAvgSq: calls.values(new Array(SIZE).fill(0), 'f32', STATE),
        gradScale: hasScale ? calls.values([0.25], 'f32', { offset: 1 }) : undefined,
      };
      for (let step = 1; step <= NUM_STEPS; step++) {
        const grad = calls.floats(SIZE, gradType, { low: 0.1, high: 2, offset: 3 });
        const groups = adamGroups(step);
        calls.run('adam', { ...state, grad, groups, segments: SEGMENTS });
      }
    }
  });
}

function sgdCase(gradType: DType): ConformanceCase {
  return recordedCase(`sgd with ${gradType} gradients`, 'arithmetic', (calls) => {
    for (const hasScale of [false, true]) {
      const state = {
        param: calls.floats(SIZE, 'f32', STATE),
        momentumBuffer: calls.floats(SIZE, 'f32', STATE), // the first step overwrites it
        gradScale: hasScale ? calls.values([0.25], 'f32', { offset: 1 }) : undefined,
      };
      for (let step = 1; step <= NUM_STEPS; step++) {
        const grad = calls.floats(SIZE, gradType, { offset: 3 });
        const groups = sgdGroups(step === 1);
        calls.run('sgd', { ...state, grad, groups, segments: SEGMENTS });
      }
    }
  });
}

/** Takes more segments and groups than a small table in a uniform buffer would hold. */
function manySegmentsCase(): ConformanceCase {
  return recordedCase('adam with 150 segments of 20 groups', 'transcendental', (calls) => {
    const segments = Array.from({ length: 150 }, (_, i) => {
      return { start: i * 7 + (i % 3), length: 1 + (i % 5), group: i % 20 };
    });
    const [first] = adamGroups(2);
    const groups = Array.from({ length: 20 }, (_, i) => ({ ...first!, lr: 0.01 * (i + 1) }));
    const size = 150 * 7 + 5;
    const state = {
      param: calls.floats(size, 'f32', { isWritten: true }),
      expAvg: calls.floats(size, 'f32', { isWritten: true }),
      expAvgSq: calls.floats(size, 'f32', { isWritten: true, low: 0.1 }),
    };
    const grad = calls.floats(size, 'f32');
    calls.run('adam', { ...state, grad, gradScale: undefined, groups, segments });
  });
}

function noMomentumCase(): ConformanceCase {
  return recordedCase('sgd without a momentum buffer', 'arithmetic', (calls) => {
    const groups = sgdGroups(false).map((group) => ({ ...group, momentum: 0, nesterov: false }));
    const call = { groups, momentumBuffer: undefined, gradScale: undefined, segments: SEGMENTS };
    const param = calls.floats(SIZE, 'f32', { isWritten: true });
    calls.run('sgd', { ...call, param, grad: calls.floats(SIZE, 'f16') });
    const single = parameterOfOne(calls);
    calls.run('sgd', { ...call, ...single, segments: [{ start: 0, length: 1, group: 1 }] });
  });
}

function parameterOfOne(calls: CallRecorder) {
  return { param: calls.floats(1, 'f32', { isWritten: true }), grad: calls.floats(1, 'bf16') };
}

/** Returns groups of AdamW, of Adam with decay in the gradient, and of Adam without decay. */
function adamGroups(step: number): AdamGroup[] {
  const group = (lr: number, beta1: number, beta2: number) => ({
    lr,
    beta1,
    beta2,
    biasCorrection1: 1 - beta1 ** step,
    biasCorrection2: 1 - beta2 ** step,
  });
  return [
    { ...group(0.05 / step, 0.9, 0.999), eps: 1e-8, weightDecay: 0.1, decoupled: true },
    { ...group(0.02, 0.8, 0.99), eps: 1e-3, weightDecay: 0.05, decoupled: false },
    { ...group(0.1, 0.9, 0.95), eps: 1e-8, weightDecay: 0, decoupled: false },
  ];
}

/** Returns groups with Nesterov momentum, with dampening and decay, and without momentum. */
function sgdGroups(isFirstStep: boolean): SgdGroup[] {
  const group = { lr: 0.1, momentum: 0.9, dampening: 0, weightDecay: 0, isFirstStep };
  return [
    { ...group, nesterov: true },
    { ...group, dampening: 0.3, weightDecay: 0.1, nesterov: false },
    { ...group, momentum: 0, weightDecay: 0.2, nesterov: false },
  ];
}
