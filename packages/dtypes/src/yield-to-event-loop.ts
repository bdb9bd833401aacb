// Gives the event loop a turn, in Node and in browsers. Timers are the last resort, because
// browsers delay nested ones by 4 ms.

/** Resolves in a later macrotask, so that sockets, timers and GPU callbacks get their turn. */
export function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => {
    if (typeof setImmediate === 'function') {
      setImmediate(resolve);
    } else if (typeof MessageChannel === 'function') {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => {
        channel.port1.close();
        resolve();
      };
      channel.port2.postMessage(null);
    } else {
      setTimeout(resolve, 0);
    }
  });
}
