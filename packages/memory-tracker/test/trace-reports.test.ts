// A trace is made into a file, a summary, top producers, suggestions and charts.

import {
  LayerMemoryTracker,
  layerChart,
  type MemorySample,
  type MemoryTrace,
  MemoryTrackerConfigError,
  memoryChart,
  memoryTraceText,
  parseMemoryTrace,
  suggestCheckpoints,
  summaryText,
  TraceFormatError,
  topProducers,
} from '@shardweave/memory-tracker';
import { Gelu, Linear, Sequential } from '@shardweave/nn';
import { Device, mean } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

/**
 * Returns a trace of modules 'layer 0', 'layer 1' and so on with the given activations, for one or
 * more passes.
 */
function traceOf(activations: readonly number[], passes: readonly number[] = [0]): MemoryTrace {
  const none = { parameter: 0, gathered: 0, gradient: 0, optimizer: 0, activation: 0, staging: 0 };
  const samples = passes.flatMap((pass) =>
    activations.map(
      (activationBytes, i): MemorySample => ({
        name: `layer ${i}`,
        type: 'Linear',
        phase: 'forward',
        pass,
        parameterBytes: 100 * i,
        liveBytes: { ...none, parameter: 1000, activation: 10 * i, total: 1000 + 10 * i },
        reservedBytes: 4096,
        gatheredBytes: 8,
        totalGatheredBytes: 8 * (i + 1),
        activationBytes,
        forwardDeltaBytes: i % 2 === 0 ? activationBytes : -activationBytes,
      }),
    ),
  );
  return { samples };
}

async function realTrace(): Promise<MemoryTrace> {
  const device = new Device(createReferenceBackend());
  const layers = [4, 32, 8].map((outFeatures, i, sizes) => {
    return new Linear(device, { inFeatures: i === 0 ? 6 : sizes[i - 1]!, outFeatures });
  });
  const model = new Sequential(device, [...layers, new Gelu(device)]);
  using tracker = new LayerMemoryTracker(model);
  for (let step = 0; step < 2; step++) {
    await device.scope(async () => mean(await model.call(device.full([5, 6], 0.5))).backward());
  }
  return tracker.trace();
}

describe('the file', () => {
  it('gives the same trace back', async () => {
    const trace = await realTrace();
    expect(trace.samples).toHaveLength(16);
    expect(parseMemoryTrace(memoryTraceText(trace))).toEqual(trace);
    const shrinking = traceOf([4, 8]); // The second module frees more than it makes.
    expect(parseMemoryTrace(memoryTraceText(shrinking))).toEqual(shrinking);
    expect(parseMemoryTrace(memoryTraceText({ samples: [] }))).toEqual({ samples: [] });
  });

  it('is refused with the place of what is wrong', () => {
    const text = memoryTraceText(traceOf([4, 8]));
    const broken = (from: string | RegExp, to: string) => () =>
      parseMemoryTrace(text.replace(from, to));
    expect(broken('{', '')).toThrow(TraceFormatError);
    expect(broken('{', '')).toThrow('expected JSON');
    expect(broken('"version":1', '"version":2')).toThrow(/at version/);
    expect(broken('"pass":0', '"pass":-1')).toThrow(/at samples\.0\.pass/);
    expect(broken('"staging":0', '"staging":"0"')).toThrow(/at samples\.0\.liveBytes\.staging/);
    expect(broken('"staging":0,', '')).toThrow(/at samples\.0\.liveBytes\.staging/);
    expect(broken('"forward"', '"sideways"')).toThrow(/at samples\.0\.phase/);
    expect(broken('"activationBytes":8', '"activationBytes":8.5')).toThrow(/at samples\.1/);
    expect(() => parseMemoryTrace('[]')).toThrow(/at the text/);
  });
});

describe('the summary', () => {
  it('names the largest producers of the first pass, equal ones in their order', () => {
    expect(topProducers(traceOf([4, 9, 9, 1], [2, 3]), 3)).toEqual([
      { name: 'layer 1', type: 'Linear', numCalls: 1, activationBytes: 9 },
      { name: 'layer 2', type: 'Linear', numCalls: 1, activationBytes: 9 },
      { name: 'layer 0', type: 'Linear', numCalls: 1, activationBytes: 4 },
    ]);
  });

  it('adds up the calls of a module', () => {
    const { samples } = traceOf([4, 9]);
    const again = { samples: [...samples, samples[0]!, samples[0]!] };
    expect(topProducers(again)[0]).toMatchObject({ name: 'layer 0', numCalls: 3 });
    expect(topProducers(again)[0]!.activationBytes).toBe(12);
  });

  it('keeps a wrapper and what it wraps apart', () => {
    const { samples } = traceOf([4]);
    const wrapper = { ...samples[0]!, type: 'Checkpoint', activationBytes: 5 };
    const producers = topProducers({ samples: [...samples, wrapper] });
    expect(producers.map(({ type, numCalls }) => [type, numCalls])).toEqual([
      ['Checkpoint', 1],
      ['Linear', 1],
    ]);
  });

  it('tells the largest reserve, also where another sample held most', () => {
    const { samples } = traceOf([4, 8, 12]);
    const [first, ...others] = samples;
    const text = summaryText({ samples: [{ ...first!, reservedBytes: 2 ** 20 }, ...others] });
    expect(text).toContain('in forward of layer 2:');
    expect(text).toContain('reserved   1.0 MiB');
  });

  it('says how much was held where', () => {
    expect(summaryText(traceOf([1024, 3072], [0, 1]), 2)).toBe(
      [
        'memory: 4 samples of 2 forwards',
        'most live  1010 B in forward of layer 1: parameter 1000 B, activation 10 B',
        'reserved   4.0 KiB',
        'gathered   32 B',
        'activations of the first forward 4.0 KiB, by module:',
        '  1.    3.0 KiB  75 %  layer 1 (Linear)',
        '  2.    1.0 KiB  25 %  layer 0 (Linear)',
        '',
      ].join('\n'),
    );
    expect(summaryText({ samples: [] })).toBe('memory: no samples\n');
  });
});

describe('suggestCheckpoints', () => {
  const trace = traceOf([10, 8, 8, 9, 7, 7, 5, 4, 4], [1, 2]);

  it('names the modules that begin segments', () => {
    expect(suggestCheckpoints(trace, 1)).toEqual({ maxSegmentBytes: 35, modules: ['layer 4'] });
    expect(suggestCheckpoints(trace, 0)).toEqual({ maxSegmentBytes: 62, modules: [] });
    const two = suggestCheckpoints(trace, 2);
    expect(two).toEqual({ maxSegmentBytes: 24, modules: ['layer 2', 'layer 5'] });
  });

  it('leaves out the modules in front that it is told to', () => {
    const { maxSegmentBytes, modules } = suggestCheckpoints(trace, 1, { skipFirst: 5 });
    expect({ maxSegmentBytes, modules }).toEqual({ maxSegmentBytes: 12, modules: ['layer 7'] });
    expect(suggestCheckpoints(trace, 1, { skipFirst: 20 }).modules).toEqual([]);
  });

  it('refuses a trace without a forward, and a skipFirst that is no number of modules', () => {
    expect(() => suggestCheckpoints({ samples: [] }, 1)).toThrow(MemoryTrackerConfigError);
    for (const skipFirst of [-1, 0.5]) {
      expect(() => suggestCheckpoints(trace, 1, { skipFirst })).toThrow(/whole skipFirst/);
    }
  });
});

describe('the charts', () => {
  it('stack the live bytes by tag up to their total, and show each sample on hover', async () => {
    const trace = await realTrace();
    const svg = memoryChart(trace);
    expect(tagsOf(svg)).toEqual({ path: 7, title: 16 }); // These are six tags and the reserve.
    const [sample] = trace.samples;
    // Heights on the page are in proportion to bytes: the reserve's height and the stack's top.
    const reserved = yOf(svg, 6, 0);
    const zero = yOf(svg, 0, -1);
    const total = yOf(svg, 5, 0);
    const share = (zero - total) / (zero - reserved);
    expect(share).toBeCloseTo(sample!.liveBytes.total / sample!.reservedBytes, 2);
    for (const path of [0, 1, 2, 3, 4, 5, 6]) {
      for (const y of allY(svg, path)) {
        expect(y >= 72 && y <= 370).toBe(true); // The point lies inside the plot.
      }
    }
    // Each tag lies on the one before: its path goes along its top and back along its foot.
    for (let tag = 1; tag < 6; tag++) {
      expect(yOf(svg, tag, -1)).toBe(yOf(svg, tag - 1, 0));
    }
    expect(svg).toContain('backward</text>');
  });

  it('give each module of the first forward a bar in proportion to its bytes', () => {
    const svg = layerChart(traceOf([1000, 500, 0], [4, 5]));
    const bars = [...svg.matchAll(/width="([\d.]+)" height="14"/g)].map(([, width]) =>
      Number(width),
    );
    expect(bars).toHaveLength(3);
    expect(bars[0]! / bars[1]!).toBeCloseTo(2, 2);
    expect(bars[2]).toBe(0);
    expect(svg).toContain('>500 B</text>');
    const growth = layerChart(traceOf([4096, 8192]), 'forwardDeltaBytes');
    expect(growth).toContain('>-8.0 KiB</text>');
    // A decrease has a bar as long as an equal increase, in a light color, and within the page.
    const [made, freed] = [...growth.matchAll(/width="([\d.]+)" height="14" fill="(#\w+)"/g)];
    expect(Number(freed![1]) / Number(made![1])).toBeCloseTo(2, 2);
    expect([made![2], freed![2]]).toEqual(['#0072b2', '#56b4e9']);
    expect(Number(freed![1])).toBeLessThanOrEqual(960 - 96 - 220);
  });

  it('cut long paths at a dot, and leave names out where there are too many', () => {
    const [sample] = traceOf([4]).samples;
    const long = { ...sample!, name: 'transformer.decoder.layers.11.attention.output' };
    expect(memoryChart({ samples: [long] })).toContain('>..11.attention.output</text>');
    expect(layerChart({ samples: [long] })).toContain('>..layers.11.attention.output</text>');
    const many = memoryChart({ samples: Array(61).fill(long) });
    expect(many).toContain('samples in order');
    expect(many).not.toContain('attention.output</text>');
  });

  it('hold names that are no XML, and traces without samples', () => {
    const [sample] = traceOf([4]).samples;
    const name = '<a & "b">\u0001';
    const trace = { samples: [{ ...sample!, name }] };
    for (const svg of [memoryChart(trace, name), layerChart(trace, 'activationBytes', name)]) {
      expect(svg).toContain('&lt;a &amp; &quot;b&quot;>?');
      expect(svg).not.toContain('<a &');
    }
    for (const svg of [memoryChart({ samples: [] }), layerChart({ samples: [] })]) {
      expect(svg).toMatch(/^<svg .*<\/svg>\n$/s);
      expect(svg).not.toMatch(/NaN|undefined|Infinity/);
    }
  });
});

function tagsOf(svg: string): Record<string, number> {
  const count = (tag: string): number => svg.split(`<${tag}`).length - 1;
  return { path: count('path'), title: count('title') };
}

/** Returns the y of a point of the nth path of a chart. */
function yOf(svg: string, path: number, point: number): number {
  return allY(svg, path).at(point)!;
}

function allY(svg: string, path: number): number[] {
  const d = [...svg.matchAll(/<path d="([^"]+)"/g)][path]![1]!;
  return [...d.matchAll(/,(-?[\d.]+)/g)].map((match) => Number(match[1]));
}
