// These tests fix when the engine tells whom: hooks run before a gradient is used, an event says
// that all gradients of a leaf are final, and callbacks run at the end of a backward.

import {
  add,
  affine,
  cat,
  Device,
  embedding,
  GraphError,
  layerNorm,
  linear,
  mul,
  type Pass,
  StateError,
  square,
  sum,
  Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeEach, describe, expect, test } from 'vitest';

let device: Device;
let log: string[];
beforeEach(() => {
  device = new Device(createReferenceBackend());
  log = [];
});

function leaf(values: readonly number[], shape: readonly number[] = [values.length]): Tensor {
  return device.tensor(values, shape, { requiresGrad: true });
}

async function gradOf(tensor: Tensor): Promise<number[]> {
  return [...(await tensor.grad!.toArray())];
}

const live = () => device.memory().live;

describe('hooks', () => {
  test('run, and are awaited, before the gradient of an output is used', async () => {
    const x = leaf([2]);
    await device.scope(async () => {
      const inner = tanh(x);
      const outer = square(inner);
      const hook = (name: string) => async () => {
        log.push(`${name} begins`);
        await new Promise((resolve) => setImmediate(resolve));
        log.push(`${name} ends, x ${x.grad === undefined ? 'waits' : 'has its gradient'}`);
      };
      expect(device.beforeGradientOf({ a: [outer, x] }, hook('outer'))).toBe(1);
      device.beforeGradientOf(inner, hook('inner'));
      await outer.backward();
    });
    expect(log).toEqual([
      'outer begins',
      'outer ends, x waits',
      'inner begins',
      'inner ends, x waits',
    ]);
  });

  test('hooks that throw reject backward and leave nothing behind', async () => {
    const x = leaf([1, 2]);
    const before = live().total;
    const loss = device.scope(() => sum(square(tanh(mul(x, 2)))));
    const branch = loss.origin!.node.edges[0]!.node!;
    branch.hooks.push(() => {
      throw new Error('not today');
    });
    await expect(loss.backward()).rejects.toThrow('not today');
    expect(device.isInBackward).toBe(false);
    expect(device.isGradEnabled).toBe(true);
    await expect(loss.backward()).rejects.toThrow(GraphError);
    loss.dispose();
    expect(x.grad).toBeUndefined();
    expect(live().total).toBe(before);
  });

  test('a rule that throws between others leaves nothing behind either', async () => {
    const x = leaf([1, 2]);
    const before = live().total;
    const loss = device.scope(() => {
      const middle = device.zeros([2]);
      device.record({
        name: 'explosive',
        inputs: [mul(x, 2)],
        outputs: [middle],
        saved: [middle],
        backward: async ([dy]) => {
          affine(dy!, 2, 0);
          throw new Error('boom');
        },
      });
      return sum(cat([square(middle), middle], { axis: 0 }));
    });
    await expect(loss.backward()).rejects.toThrow('boom');
    loss.dispose();
    expect(live().total).toBe(before);
  });
});

describe('the final event', () => {
  test('comes once a backward, after all uses, with the gradient complete', async () => {
    const x = leaf([2]);
    const seen: Promise<number[]>[] = [];
    const remove = device.autograd.onGradientFinal(x, (tensor, pass) => {
      log.push(`final ${pass.reached.has(x)}`);
      seen.push(gradOf(tensor));
    });
    const step = () =>
      device.scope(() => add(mul(x, x), add(tanh(mul(x, 0)), mul(x, 5))).backward());
    await step();
    await step();
    expect(log).toEqual(['final true', 'final true']);
    expect(await Promise.all(seen)).toEqual([[9], [18]]);
    remove();
    await step();
    expect(log).toHaveLength(2);
  });

  test('reaches a sink with every contribution instead of grad', async () => {
    const x = leaf([2]);
    const accepted: Promise<number[]>[] = [];
    x.gradSink = {
      accept: (_, gradient) => {
        accepted.push(gradient.toArray().then((values) => [...values]));
      },
      final: () => {
        log.push(`final after ${accepted.length}`);
      },
    };
    await device.scope(() => add(mul(x, x), mul(x, 5)).backward());
    expect(x.grad).toBeUndefined();
    expect(log).toEqual(['final after 3']);
    expect((await Promise.all(accepted)).flat().sort()).toEqual([2, 2, 5]);
  });

  test.each<[string, () => [parameters: Tensor[], run: () => Tensor]]>([
    [
      'the bias of a linear layer',
      () => {
        const bias = leaf([1, 2]);
        const [x, weight] = [device.tensor([1, 10], [2, 1]), device.tensor([3, 4], [2, 1])];
        return [[bias], () => linear(x, { weight, bias, transposeWeight: true })];
      },
    ],
    [
      'weight and bias of a layer norm',
      () => {
        const affine = { weight: leaf([1, 2]), bias: leaf([3, 4]) };
        const x = device.tensor([1, 10, 4, 2], [2, 2]);
        return [[affine.weight, affine.bias], () => layerNorm(x, affine)];
      },
    ],
    [
      'a table of rows',
      () => {
        const table = leaf([1, 2, 3, 4, 5, 6], [3, 2]);
        const ids = device.tensor(Int32Array.of(2, 0, 2), [3]);
        return [[table], () => embedding(table, ids)];
      },
    ],
  ])('lets an op write the gradient into the place that a sink has: %s', async (_, make) => {
    const gradients = async (hasPlaces: boolean): Promise<number[][]> => {
      const [parameters, run] = make();
      const held = parameters.map(({ size }) => device.empty([size + 2]).keep());
      parameters.forEach((parameter, i) => {
        const place = new Tensor(held[i]!.storage, parameter.shape, 1);
        device.copyInto(held[i]!, device.full([parameter.size + 2], 9));
        parameter.gradSink = {
          ...(hasPlaces ? { target: () => place } : {}),
          accept: (_leaf, gradient) => {
            expect(gradient === place).toBe(hasPlaces);
            if (!hasPlaces) {
              device.copyInto(place, gradient);
            }
          },
          final: () => {},
        };
      });
      await device.scope(() => sum(square(run())).backward());
      return Promise.all(held.map(async (each) => [...(await each.toArray())]));
    };
    const written = await gradients(true);
    expect(written).toEqual(await gradients(false));
    for (const values of written) {
      expect([values[0], values.at(-1)]).toEqual([9, 9]);
    }
  });

  test('lets a linear layer write into the place that a sink has, once', async () => {
    const w = leaf([1, 2, 3, 4, 5, 6], [3, 2]);
    const whole = device.storage(8, 'f32', 'gradient');
    whole.fill();
    device.backend.run('fill', { out: whole.view(), value: 9 });
    const places: Tensor[] = [];
    const accepted: Tensor[] = [];
    const separate: Promise<number[]>[] = [];
    w.gradSink = {
      target: (of) => {
        log.push(`target ${of === w}`);
        if (places.length > 0) {
          return undefined;
        }
        places.push(new Tensor(whole, w.shape, 1));
        return places[0];
      },
      accept: (_, gradient) => {
        accepted.push(gradient);
        if (gradient !== places[0]) {
          separate.push(gradient.toArray().then((values) => [...values]));
        }
      },
      final: () => {},
    };
    await device.scope(async () => {
      const x = device.tensor([1, 10], [1, 2]);
      const first = linear(x, { weight: w, transposeWeight: true });
      const second = linear(affine(x, 2, 0), { weight: w, transposeWeight: true });
      // This weight is not a leaf, so it has no sink of its own.
      const third = linear(x, { weight: affine(w, 1, 0), transposeWeight: true });
      await sum(add(add(first, second), third)).backward();
    });
    expect(log).toEqual(['target true', 'target true']);
    expect(accepted).toHaveLength(3);
    expect(accepted).toContain(places[0]);
    // Backward runs the second layer first. Its gradient is twice x for each of the three rows.
    const written = [...new Float32Array((await whole.read()).slice().buffer)];
    expect(written).toEqual([9, 2, 20, 2, 20, 2, 20, 9]);
    expect(await Promise.all(separate)).toEqual([
      [1, 10, 1, 10, 1, 10],
      [1, 10, 1, 10, 1, 10],
    ]);
    whole.release();
  });

  test('waits for the inner backward of a segment that hides leaves', async () => {
    const w = leaf([3]);
    const x = leaf([2]);
    const passes: Pass[] = [];
    device.autograd.onGradientFinal(w, (_, pass) => {
      log.push('final');
      passes.push(pass);
    });
    await device.scope(async () => {
      const direct = mul(w, 10);
      const segment = checkpointed(x, w);
      device.beforeGradientOf(segment, (pass) => {
        passes.push(pass);
        pass.onEnd(() => {
          log.push('end');
        });
      });
      await add(segment, direct).backward();
    });
    // For w * x * w + 10 w at w = 3 and x = 2, dw = 2wx + 10 and dx = w^2.
    expect([await gradOf(w), await gradOf(x)]).toEqual([[22], [9]]);
    expect(log).toEqual(['recompute', 'inner done', 'final', 'end']);
    expect(passes[0]).toBe(passes[1]);
    expect(passes[0]!.reached.has(w)).toBe(true);
  });

  test('the event of a hidden leaf comes also where no gradient reaches the segment', async () => {
    const w = leaf([3]);
    device.autograd.onGradientFinal(w, () => {
      log.push('final');
    });
    await device.scope(() => {
      const out = device.zeros([1]);
      device.record({
        name: 'dead end',
        inputs: [checkpointed(leaf([1]), w)],
        outputs: [out],
        saved: [],
        backward: () => [undefined],
      });
      return out.backward();
    });
    expect(log).toEqual(['final']);
    expect(w.grad).toBeUndefined();
  });

  /** Does what checkpointing does: forward runs without a graph, and again with one in backward. */
  function checkpointed(x: Tensor, w: Tensor): Tensor {
    const forward = (input: Tensor) => mul(mul(w, input), w);
    const out = device.noGrad(() => forward(x));
    device.record({
      name: 'checkpoint',
      inputs: [x],
      outputs: [out],
      saved: [x],
      hiddenLeaves: [w],
      backward: async ([dy]) => {
        log.push('recompute');
        const input = x.detach();
        input.requiresGrad = true;
        const again = device.autograd.enableGrad(() => forward(input));
        await again.backward({ gradient: dy! });
        log.push('inner done');
        return [input.grad];
      },
    });
    return out;
  }
});

describe('the end', () => {
  test('comes after the promises of final events; callbacks may add of both kinds', async () => {
    const x = leaf([2]);
    const later = (text: string) =>
      new Promise<void>((resolve) => {
        setTimeout(() => {
          log.push(text);
          resolve();
        }, 5);
      });
    let addPromise: (() => Promise<void>) | undefined;
    device.autograd.onGradientFinal(x, (_, pass) => {
      pass.onEnd(async () => {
        log.push('end');
        pass.onEnd(() => {
          log.push('late end');
        });
        await addPromise?.();
      });
      return later('reduced');
    });
    // A backward inside an end callback joins the pass, and the promises that it hands over are
    // awaited too.
    const y = leaf([1]);
    device.autograd.onGradientFinal(y, () => later('reduced again'));
    addPromise = () => device.scope(() => square(y).backward());
    await device.scope(() => square(x).backward());
    expect(log).toEqual(['reduced', 'end', 'reduced again', 'late end']);
  });

  test('a promise or callback that rejects fails the backward after all others settled', async () => {
    const x = leaf([2]);
    const y = leaf([2]);
    device.autograd.onGradientFinal(x, async (_, pass) => {
      let tell: () => void = () => undefined;
      const told = new Promise<void>((resolve) => {
        tell = resolve;
      });
      pass.onFailure(() => {
        throw new Error('a failure callback of somebody else');
      });
      pass.onFailure(() => told); // This is how a rank waits for news from another one.
      pass.onFailure(() => {
        log.push('restored');
        tell();
      });
      pass.onEnd(() => {
        log.push('never');
      });
      throw new Error('lost a peer');
    });
    device.autograd.onGradientFinal(y, async () => {
      await new Promise((resolve) => setTimeout(resolve, 5));
      log.push('settled');
    });
    await expect(device.scope(() => mul(y, x).backward())).rejects.toThrow('lost a peer');
    expect(log).toEqual(['settled', 'restored']);
    expect(device.isInBackward).toBe(false);
    await device.scope(() => square(leaf([1])).backward()); // The device still works.
  });

  test('a hook of a final event that throws does not keep others from being told', async () => {
    const x = leaf([2]);
    device.autograd.onGradientFinal(x, () => {
      throw new Error('first');
    });
    device.autograd.onGradientFinal(x, async () => {
      log.push('second');
    });
    await expect(device.scope(() => square(x).backward())).rejects.toThrow('first');
    expect(log).toEqual(['second']);
  });
});

describe('rules in progress', () => {
  /** Returns a tensor whose gradient rule waits for `body`. */
  function slow(x: Tensor, body: () => Promise<void>): Tensor {
    const out = device.empty([1]);
    device.record({
      name: 'slow',
      inputs: [x],
      outputs: [out],
      saved: [],
      backward: async ([gradient]) => {
        await body();
        return [gradient];
      },
    });
    return out;
  }

  test('are known while an asynchronous rule runs, and not between rules or inside its own backward', async () => {
    const x = leaf([2]);
    const seen: (string | undefined)[] = [];
    const note = () => void seen.push(device.autograd.ruleInProgress?.name);
    await device.scope(async () => {
      const y = slow(x, async () => {
        note();
        await device.autograd.enableGrad(() => {
          const inner = tanh(x.detach());
          inner.requiresGrad = true;
          const out = square(inner);
          device.beforeGradientOf(out, note);
          return out.backward();
        });
        note();
      });
      const z = square(y);
      device.beforeGradientOf([y, z], note);
      await z.backward();
    });
    expect(seen).toEqual([undefined, undefined, 'slow', undefined, 'slow']);
    expect(device.autograd.ruleInProgress).toBe(undefined);
  });

  test('are forgotten when one fails', async () => {
    const bad = device.scope(() =>
      slow(leaf([1]), () => Promise.reject(new Error('bad'))).backward(),
    );
    await expect(bad).rejects.toThrow('bad');
    expect(device.autograd.ruleInProgress).toBe(undefined);
  });

  test('a backward beside one that nobody awaited is refused, and the first is right', async () => {
    const [x, y] = [leaf([2]), leaf([3])];
    await device.scope(async () => {
      const [first, second] = [square(tanh(x)), square(y)];
      const walking = first.backward();
      await expect(second.backward()).rejects.toThrow(StateError);
      await walking;
      expect(y.grad).toBe(undefined);
      await second.backward();
    });
    expect(await gradOf(y)).toEqual([6]);
    const t = Math.tanh(2);
    expect((await gradOf(x))[0]).toBeCloseTo(2 * t * (1 - t * t), 6);
  });
});
