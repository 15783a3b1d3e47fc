/* Search without a server. Browsers start no worker from a file, so there the script of the worker runs in a hidden
 * frame, and messages are handed over directly. With a server the browser's own workers are used. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      const inner = frame.contentWindow;
      const answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      frame.contentDocument.open();
      frame.contentDocument.write("<!doctype html><title>worker</title>");
      frame.contentDocument.close();
      inner.postMessage = (data) => setTimeout(() => answer(data));
      inner.importScripts = () => Promise.reject(new Error("no further scripts in a file"));
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = () => {
        this.inner = inner;
        this.waiting.forEach((data) => this.postMessage(data));
      };
      frame.contentDocument.head.appendChild(script);
    }
    postMessage(data) {
      if (!this.inner) this.waiting.push(data);
      else this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
