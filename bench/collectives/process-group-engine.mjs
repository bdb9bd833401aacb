// Makes a ProcessGroup an engine of the bench.

/**
 * @param {{ name: string, group: object, wire?: string, allocate?: object, release?: object }}
 * options
 */
export function processGroupEngine({ name, group, wire, allocate, release }) {
  const { rank, worldSize } = group;
  const move = { dtype: 'f32' };
  const gather = wire === undefined ? move : { ...move, wire };
  const sum = { ...gather, op: 'sum' };
  const next = (rank + 1) % worldSize;
  const previous = (rank + worldSize - 1) % worldSize;
  return {
    name,
    wire,
    rank,
    worldSize,
    allocate: allocate ?? ((byteLength) => new Uint8Array(byteLength)),
    release: release ?? (() => {}),
    barrier: () => group.barrier(),
    allGather: (input, output) => group.allGather(input, output, gather),
    reduceScatter: (input, output) => group.reduceScatter(input, output, sum),
    allReduce: (bytes) => group.allReduce(bytes, bytes, sum),
    broadcast: (bytes) => group.broadcast(bytes, { ...move, root: 0 }),
    sendRecv: (data, buffer) =>
      Promise.all([
        group.recv(buffer, { dtype: 'f32', from: previous }),
        group.send(data, { dtype: 'f32', to: next }),
      ]),
    close: () => group.close(),
  };
}
