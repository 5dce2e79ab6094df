// Browsers start no worker for a page that was opened as a file. The search of the site runs in a worker, so on such a
// page this class takes the place of Worker: it runs the script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inner = this.frame.contentWindow;
      this.inner.postMessage = (data) => this.receive(data);
      this.ready = new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = resolve;
        script.onerror = reject;
        this.inner.document.body.append(script);
      });
      this.ready.catch((error) => this.onerror?.(error));
    }
    receive(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) });
      setTimeout(() => { // a worker never answers before the caller's code has ended
        this.onmessage?.(event);
        this.dispatchEvent(event);
      });
    }
    postMessage(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) });
      this.ready.then(() => setTimeout(() => this.inner.dispatchEvent(event)));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
